// A package's graph on ONNX Runtime: one call runs one step over tensors that the caller owns. It keeps no request's
// state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/shape.h"
#include "package/manifest.h"

// ONNX Runtime's own types, by name only: its headers stay inside session/ and ops/.
struct OrtApiBase;
struct OrtSessionOptions;
struct OrtStatus;

namespace sluice {

// Adds operators to a session before the model is loaded: what a custom-operator library calls RegisterCustomOps.
// Null: stock ONNX Runtime. A library named inside a package is never loaded from here.
using RegisterOperators = OrtStatus* (*)(OrtSessionOptions*, const OrtApiBase*);

enum class Optimization { none, basic, extended, all };  // ONNX Runtime's graph optimisation levels

struct SessionOptions {
  RegisterOperators register_operators = nullptr;
  int threads = 0;  // 0: one a hardware thread
  Optimization optimization = Optimization::all;
  // Whether ONNX Runtime copies MatMul weights into its own order: faster for many rows at once, but the weights then
  // take anonymous memory; without it they stay in the mapped file. Weights of domain `sluice` are always read in
  // place.
  bool prepack = true;
  bool spin = false;             // worker threads busy-wait between operators: faster on idle machines, burns the cores
  std::string role = "decoder";  // which of the manifest's graphs
};

// A dense, row-major tensor in the caller's memory, read or written by a step. No alignment is needed.
struct TensorRef {
  DType dtype = DType::f32;
  Shape shape;
  void* data = nullptr;
  std::size_t bytes = 0;  // of the memory at `data`: at least byte_count(shape, dtype)
};

struct PortBinding {
  std::string_view name;
  TensorRef tensor;
};

class Session {
 public:
  // Loads the graph that the package's manifest names for `options.role`. Throws Error when ONNX Runtime refuses the
  // graph, when the graph's inputs and outputs are not those of the manifest, or when there is no such graph.
  Session(const std::filesystem::path& package, const SessionOptions& options);
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  const Manifest& manifest() const noexcept;
  const GraphInfo& graph() const noexcept;
  // The manifest's entry of an ordinary input or output; null when the graph has none of that name.
  const PortInfo* input(std::string_view name) const noexcept;
  const PortInfo* output(std::string_view name) const noexcept;

  // Runs the graph once. `inputs` must name every input, states included; `outputs` the outputs wanted. An input and an
  // output may share memory where the operator allows it: conv, recurrent and paged states always do, growing_kv when
  // the cache is given at its capacity on both sides (see step.h). Throws Error for anything that does not fit the
  // manifest and when ONNX Runtime reports a failure; the memory of the outputs is then undefined. Calls from several
  // threads may overlap.
  void run(std::span<const PortBinding> inputs, std::span<const PortBinding> outputs) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// "1.32.0": of the library this program runs with.
std::string runtime_version();

}  // namespace sluice

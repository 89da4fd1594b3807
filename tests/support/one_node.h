// A model of one node, run by ONNX Runtime with our operators or with its own.
#pragma once

#include <onnxruntime_cxx_api.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/cpu/level.h"
#include "onnx/graph.h"
#include "tests/support/tensors.h"

namespace sluice::ops {

struct OutputSpec {
  DType dtype = DType::f32;
  std::size_t rank = 0;
};

// Inputs are named "i0", "i1", ..., outputs "o0", "o1", ...
struct NodeCase {
  std::string domain = "com.microsoft";
  std::string op;
  std::vector<std::optional<TestTensor>> inputs;
  std::vector<Attribute> attributes;
  std::vector<std::optional<OutputSpec>> outputs;
  std::set<std::size_t> initializers;  // inputs that are constants of the model
  bool fixed_shapes = false;           // declares the inputs' extents; otherwise each is a symbol of its own
};

std::string serialize_case(const NodeCase& node);

// Null: ONNX Runtime's own kernels.
using Kernels = std::optional<Level>;

// One environment for the whole test program; prints nothing.
const Ort::Env& test_environment();
Ort::SessionOptions session_options(Kernels kernels, int threads = 1);

// A tensor over bytes that the caller keeps.
Ort::Value as_value(TestTensor& tensor);
TestTensor from_value(const Ort::Value& value);

struct Outcome {
  std::string error;                // empty: it ran
  std::vector<TestTensor> outputs;  // the listed ones

  const TestTensor& operator[](std::size_t i) const { return outputs.at(i); }
};

// Loads and runs; what ONNX Runtime throws becomes Outcome::error.
Outcome run_node(const NodeCase& node, Kernels kernels, int threads = 1);

}  // namespace sluice::ops

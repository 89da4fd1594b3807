// sluice.json: what a package is, where it came from, and how a runtime binds it. docs/formats/package.md describes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/extent.h"
#include "base/json.h"
#include "base/shape.h"

namespace sluice {

enum class Layout { dense, packed };
enum class Recurrence { linear_attention, gated_delta_net, varlen_linear_attention };
enum class Gates { raw, effective };
enum class StateKind { paged_kv, growing_kv, conv, recurrent };

// Spellings of options, manifests and messages: "gated-delta-net", "paged_kv", ...
std::string_view name_of(Layout) noexcept;
std::string_view name_of(Recurrence) noexcept;
std::string_view name_of(Gates) noexcept;
std::string_view name_of(StateKind) noexcept;
std::optional<Layout> layout_from_name(std::string_view) noexcept;
std::optional<Recurrence> recurrence_from_name(std::string_view) noexcept;
std::optional<Gates> gates_from_name(std::string_view) noexcept;
std::optional<StateKind> state_kind_from_name(std::string_view) noexcept;

struct PortInfo {  // an ordinary graph input or output
  std::string name;
  DType dtype = DType::f32;
  std::vector<Extent> shape;
};

// One state tensor of one layer: read through `input`, written through `output`; both have dtype and shape.
// A growing_kv output has total_sequence_length where the input has past_sequence_length.
// paged_kv and growing_kv have two rows a layer (key, value).
struct StateInfo {
  StateKind kind = StateKind::recurrent;
  std::int64_t layer = 0;
  DType dtype = DType::f32;
  std::vector<Extent> shape;
  std::string input;
  std::string output;
};

struct GraphInfo {
  std::string role;               // "decoder"
  std::string file;               // "model.onnx"
  std::vector<PortInfo> inputs;   // states excluded
  std::vector<PortInfo> outputs;  // states excluded
  std::vector<StateInfo> states;
};

struct FileInfo {
  std::string path;  // relative to the package
  std::uint64_t bytes = 0;
  std::string xxh3;  // 16 hex digits
};

struct WeightInfo {  // one initializer of the graph: where it lies, and which canonical weight it holds
  std::string initializer;
  std::string canonical;  // empty for constants and tables
  DType dtype = DType::f32;
  Shape shape;
  std::string file;
  std::uint64_t offset = 0;  // bytes
  std::uint64_t bytes = 0;
  std::string transform;    // "", "interleave", "neg_exp", ... for readers
  std::string source_xxh3;  // of the checkpoint bytes it was made from, in the order used; empty for tables
};

// A file of the checkpoint that was read. The hash of a weight file covers its header alone (8 bytes of length and the
// JSON): what was read of its data is hashed weight by weight, since a cut export does not read all of it.
struct SourceInfo {
  std::string path;  // relative to the checkpoint
  std::uint64_t bytes = 0;
  std::string xxh3;
  std::string covers;  // "whole" | "header"
};

// The sizes of the model that a runtime, a verifier or a person needs; see HybridConfig for meanings.
struct ModelInfo {
  std::string model_type;
  std::string family;
  std::int64_t layers = 0, hidden = 0, vocab = 0, context_length = 0;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t linear_k_heads = 0, linear_v_heads = 0, linear_k_dim = 0, linear_v_dim = 0, conv_kernel = 0;
  std::vector<std::string> layer_kinds;  // "linear_attention" | "full_attention"
  std::int64_t experts = 0, experts_per_token = 0;
  std::vector<std::int64_t> eos_ids;
  std::optional<std::int64_t> bos_id, pad_id;
};

struct Manifest {
  static constexpr std::int64_t kFormat = 1;
  std::string sluice_version;
  std::string target;  // "ort-cpu" | "ort-cuda" | "sluice"
  Layout layout = Layout::dense;
  Recurrence recurrence = Recurrence::linear_attention;
  Gates gates = Gates::effective;
  DType activation = DType::f32;
  std::string weights = "source";  // option as resolved: source | fp32 | fp16 | bf16
  bool prune_lm_head = false;
  std::int64_t state_update_capacity = 0;
  std::int64_t block_size = 0, kv_blocks = 0, max_batch = 0;  // packed only
  std::int64_t chunk_size = 64;
  double qk_norm_epsilon = 1e-6;  // what the graph's q/k normalisation really uses: 1e-6, or 1e-12 inside GatedDeltaNet
  std::int64_t rank = 0, world_size = 1;
  ModelInfo model;
  std::vector<GraphInfo> graphs;
  std::vector<WeightInfo> weights_index;
  std::vector<SourceInfo> sources;
  std::vector<FileInfo> files;              // files written, sluice.json excepted
  std::vector<std::string> unused_tensors;  // of the checkpoint, deliberately left out
  std::vector<std::string> notices;
  Json options;  // the export's options as given
};

inline constexpr const char* kManifestFile = "sluice.json";

Json to_json(const Manifest& manifest);
// Throws Error naming the key for anything missing, of the wrong type, out of range, or of a later format.
Manifest manifest_from_json(const Json& json, std::string_view source);
// Reads DIR/sluice.json; checks that every path in it stays inside the package.
Manifest read_manifest(const std::filesystem::path& package);

}  // namespace sluice

// What a checkpoint or a package is, as one value: apps print it, html.h draws it.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "architecture/hybrid_config.h"
#include "base/dtype.h"
#include "base/json.h"
#include "base/shape.h"

namespace sluice {

// What weights are for; also the order they are shown in.
enum class Part { embedding, linear, attention, mlp, experts, shared_expert, norms, head, tables };
inline constexpr std::size_t kParts = 9;
std::string_view name_of(Part) noexcept;                            // "linear": for JSON
std::string_view label_of(Part) noexcept;                           // "linear attention": for people
Part part_of(std::string_view canonical) noexcept;                  // of a canonical weight; "" is a table
std::int64_t layer_of_weight(std::string_view canonical) noexcept;  // -1: of no layer

// A tensor of a checkpoint, or an initializer of a package.
struct TensorReport {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::uint64_t bytes = 0;
  std::string file;
  std::uint64_t offset = 0;  // bytes, in the file
  std::string use;           // the canonical weights it holds; "table"; or why it is left out
  bool used = true;
  Part part = Part::tables;
  std::int64_t layer = -1;
};

struct PartReport {
  std::uint64_t parameters = 0;
  std::uint64_t bytes = 0;
  // What one decoded token needs: of the experts those chosen, of the embedding one row unless it is the head as well.
  std::uint64_t active_parameters = 0;
  std::uint64_t active_bytes = 0;
};

struct LayerReport {
  LayerKind kind = LayerKind::linear_attention;
  bool experts = false;
  std::uint64_t mixer_bytes = 0;  // attention of either kind, and the layer's norms
  std::uint64_t mlp_bytes = 0;    // dense, or all experts
};

// What a sequence keeps between tokens, over all layers.
struct StateReport {
  DType kv_dtype = DType::f32, conv_dtype = DType::f32, recurrent_dtype = DType::f32;
  std::uint64_t kv_bytes_per_token = 0;
  std::uint64_t conv_bytes = 0;
  std::uint64_t recurrent_bytes = 0;
  std::uint64_t fixed_bytes() const { return conv_bytes + recurrent_bytes; }
};

struct ModelFacts {
  std::string model_type, family;
  std::int64_t layers = 0, hidden = 0, vocab = 0, context = 0;
  std::int64_t intermediate = 0;  // 0: no dense MLP, or not known
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t linear_k_heads = 0, linear_v_heads = 0, linear_k_dim = 0, linear_v_dim = 0, conv_kernel = 0;
  std::int64_t experts = 0, experts_per_token = 0, expert_intermediate = 0;
  bool tied = false;
  std::string rope;  // in words; empty: not known
};

struct FileReport {
  std::string name;
  std::uint64_t bytes = 0;
};

struct OperatorCount {
  std::string domain;  // empty: ai.onnx
  std::string type;
  std::uint64_t count = 0;
};

struct InspectReport {
  enum class Subject { checkpoint, package };
  Subject subject = Subject::checkpoint;
  std::string path;
  ModelFacts model;
  std::vector<std::pair<std::string, std::string>> build;  // of a package: target, layout, recurrence, ...
  std::array<PartReport, kParts> parts;
  std::vector<LayerReport> layers;
  StateReport state;
  std::vector<TensorReport> tensors;  // in file order
  std::vector<FileReport> files;
  std::vector<OperatorCount> operators;  // of a package, most frequent first
  std::vector<std::string> left_out;     // of a package: checkpoint tensors it does not hold
  std::vector<std::string> notices;

  const PartReport& part(Part p) const { return parts[static_cast<std::size_t>(p)]; }
  PartReport total() const;
  std::uint64_t unused_bytes() const;
};

// Reads a checkpoint folder, a .safetensors file with its config beside it, or a package folder (one with sluice.json).
InspectReport inspect(const std::filesystem::path& path);

Json to_json(const InspectReport& report);
std::string to_text(const InspectReport& report);  // many lines, for a terminal

// Tensors that differ in layer or expert number alone, as one row.
struct TensorGroup {
  std::string name;  // numbers as "*": "model.layers.*.mlp.up_proj.weight"
  std::string use;
  DType dtype = DType::f32;
  Shape shape;
  bool used = true;
  Part part = Part::tables;
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;  // of all
};
std::vector<TensorGroup> group_tensors(const InspectReport& report);  // in order of their first tensor

// "48 linear attention, 16 full attention"
std::string layers_in_words(const InspectReport& report);
// Tokens from which on the KV cache is larger than the fixed state; 0 when one of them is empty.
std::uint64_t crossover_tokens(const StateReport& state);

// "3.08 GB" and "26.9 B": decimal, three digits.
std::string bytes_in_words(std::uint64_t bytes);
std::string count_in_words(std::uint64_t count);

}  // namespace sluice

// Canonical weights as row streams over the mapped checkpoint: the only executor of the weight table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "architecture/hybrid_config.h"
#include "architecture/weight_table.h"
#include "base/shape.h"
#include "checkpoint/checkpoint.h"

namespace sluice {

// Consecutive elements of a canonical weight that lie together in one mapped file.
struct WeightPiece {
  DType dtype = DType::bf16;         // f32, f16 or bf16; pieces of one weight may differ
  std::span<const std::byte> bytes;  // possibly unaligned; valid as long as the checkpoint lives
  std::uint64_t elements() const noexcept { return bytes.size() / dtype_bytes(dtype); }
};

// A canonical weight, not yet read: its pieces in row-major order, and what happens to each value.
struct CanonicalWeight {
  std::string name;
  Shape shape;
  std::vector<WeightPiece> pieces;  // neighbours in the file are one piece
  Elementwise elementwise = Elementwise::none;
  std::vector<std::string_view> tensors;  // the checkpoint tensors it comes from, by their full names
  std::uint64_t elements() const;
  // The one dtype of all pieces; the widest (f32) when they differ.
  DType dtype() const;
};

// Widens elements [first, first + out.size()) of a weight, exactly, and applies its elementwise step in `T` (float or
// double). Cheap for consecutive calls: finds its first piece by a scan over pieces.
template <typename T>
void read_elements(const CanonicalWeight& weight, std::uint64_t first, std::span<T> out);

// The whole weight, widened: for the reference and for small tensors.
template <typename T>
std::vector<T> read_all(const CanonicalWeight& weight);

struct UnusedTensor {
  std::string name;    // in the checkpoint
  std::string reason;  // "multi-token prediction", "vision tower", "rotary buffer", "tied: the embedding is used", ...
};

// The weight table of a model resolved against a checkpoint. Every tensor of the checkpoint is used, listed as
// deliberately unused, or an error: the constructor throws one Error that names what is missing (by checkpoint name,
// with the config key that asks for it), unexpected, of a wrong shape (found and expected) or of a dtype that is no
// float weight. Holds views into `checkpoint`, which must outlive it (moving it is fine).
class WeightSource {
 public:
  WeightSource(const HybridConfig& config, const Checkpoint& checkpoint);
  WeightSource(WeightSource&&) noexcept = default;
  WeightSource& operator=(WeightSource&&) noexcept = default;

  std::span<const CanonicalWeight> weights() const noexcept { return weights_; }  // in table order
  const CanonicalWeight* find(std::string_view name) const noexcept;              // canonical name; null when absent
  const CanonicalWeight& at(std::string_view name) const;                         // a missing name is a bug
  std::span<const UnusedTensor> unused() const noexcept { return unused_; }       // sorted by name
  const std::vector<std::string>& notices() const noexcept { return notices_; }
  std::string_view prefix() const noexcept { return prefix_; }  // "model.language_model.", "model.", ...

 private:
  friend class WeightResolver;
  std::vector<CanonicalWeight> weights_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
  std::vector<UnusedTensor> unused_;
  std::vector<std::string> notices_;
  std::string prefix_;
};

// A checkpoint read, checked and resolved: what every command that takes a checkpoint starts from.
struct ModelSource {
  HybridConfig config;
  Checkpoint checkpoint;
  WeightSource weights;
  // Of the config, the checkpoint and the weights, in that order.
  std::vector<std::string> notices() const;
};

// Opens a checkpoint folder (or one .safetensors file with config.json beside it). Errors as in the three parts.
ModelSource open_model(const std::filesystem::path& path);

}  // namespace sluice

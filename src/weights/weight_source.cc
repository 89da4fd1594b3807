#include "weights/weight_source.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "architecture/read_config.h"
#include "base/error.h"
#include "base/float16.h"
#include "weights/weight_resolver.h"

namespace sluice {
namespace {

// Widens `count` elements from an unaligned address.
template <typename Source, typename T>
void widen(const std::byte* from, std::span<T> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Source value;
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    out[i] = static_cast<T>(to_f32(value));
  }
}

template <typename T>
void widen(const WeightPiece& piece, std::uint64_t first, std::span<T> out) {
  const std::byte* from = piece.bytes.data() + first * dtype_bytes(piece.dtype);
  switch (piece.dtype) {
    case DType::f32:
      return widen<float>(from, out);
    case DType::bf16:
      return widen<bf16>(from, out);
    case DType::f16:
      return widen<f16>(from, out);
    default:
      SLUICE_CHECK(false && "a weight of another dtype");
  }
}

}  // namespace

std::uint64_t CanonicalWeight::elements() const {
  std::uint64_t total = 0;
  for (const WeightPiece& piece : pieces) total += piece.elements();
  return total;
}

DType CanonicalWeight::dtype() const {
  SLUICE_CHECK(!pieces.empty());
  for (const WeightPiece& piece : pieces) {
    if (piece.dtype != pieces.front().dtype) return DType::f32;
  }
  return pieces.front().dtype;
}

template <typename T>
void read_elements(const CanonicalWeight& weight, std::uint64_t first, std::span<T> out) {
  std::span<T> rest = out;
  for (const WeightPiece& piece : weight.pieces) {
    if (rest.empty()) break;
    const std::uint64_t elements = piece.elements();
    if (first >= elements) {
      first -= elements;
      continue;
    }
    const std::size_t count = std::min<std::uint64_t>(rest.size(), elements - first);
    widen(piece, first, rest.first(count));
    rest = rest.subspan(count);
    first = 0;
  }
  SLUICE_CHECK(rest.empty());
  if (weight.elementwise == Elementwise::plus_one) {
    for (T& value : out) value += T{1};
  }
}

template <typename T>
std::vector<T> read_all(const CanonicalWeight& weight) {
  std::vector<T> out(weight.elements());
  read_elements<T>(weight, 0, out);
  return out;
}

template void read_elements<float>(const CanonicalWeight&, std::uint64_t, std::span<float>);
template void read_elements<double>(const CanonicalWeight&, std::uint64_t, std::span<double>);
template std::vector<float> read_all<float>(const CanonicalWeight&);
template std::vector<double> read_all<double>(const CanonicalWeight&);

WeightSource::WeightSource(const HybridConfig& config, const Checkpoint& checkpoint) {
  WeightResolver(config, checkpoint, *this).resolve();
  by_name_.reserve(weights_.size());
  for (std::size_t i = 0; i < weights_.size(); ++i) by_name_.emplace(weights_[i].name, i);
}

const CanonicalWeight* WeightSource::find(std::string_view name) const noexcept {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &weights_[it->second];
}

const CanonicalWeight& WeightSource::at(std::string_view name) const {
  const CanonicalWeight* weight = find(name);
  SLUICE_CHECK(weight != nullptr);
  return *weight;
}

std::vector<std::string> ModelSource::notices() const {
  std::vector<std::string> all = config.notices;
  all.insert(all.end(), checkpoint.notices().begin(), checkpoint.notices().end());
  all.insert(all.end(), weights.notices().begin(), weights.notices().end());
  return all;
}

ModelSource open_model(const std::filesystem::path& path) {
  std::error_code ignored;
  // The config first, where there is one: it tells a quantised checkpoint by name before its tensors confuse anybody.
  std::optional<HybridConfig> config;
  if (std::filesystem::exists(path / "config.json", ignored)) config = read_config(path);
  Checkpoint checkpoint(path);
  if (!config) config = read_config(checkpoint.directory());
  WeightSource weights(*config, checkpoint);
  return {std::move(*config), std::move(checkpoint), std::move(weights)};
}

}  // namespace sluice

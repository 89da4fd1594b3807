#include "inspect/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <span>
#include <tuple>

namespace sluice {
namespace {

constexpr std::array<std::string_view, kParts> kNames{"embedding",     "linear", "attention", "mlp",   "experts",
                                                      "shared_expert", "norms",  "head",      "tables"};
constexpr std::array<std::string_view, kParts> kLabels{"embedding", "linear attention",  "full attention",
                                                       "MLP",       "experts",           "shared expert",
                                                       "norms",     "output projection", "position tables"};

std::string in_words(double value, std::span<const char* const> units, int whole_digits) {
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  const int digits = unit == 0 ? whole_digits : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  const std::string text = fmt::format("{:.{}f}", value, digits);
  return *units[unit] == '\0' ? text : fmt::format("{} {}", text, units[unit]);
}

// A name with every component that is a number replaced: "layers.3.x" -> "layers.*.x".
std::string without_numbers(std::string_view name) {
  std::string out;
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t end = std::min(name.find_first_of("./ ", at), name.size());
    const std::string_view piece = name.substr(at, end - at);
    const bool number = !piece.empty() && piece.find_first_not_of("0123456789") == std::string_view::npos;
    out += number ? std::string_view("*") : piece;
    if (end < name.size()) out += name[end];
    at = end + 1;
  }
  return out;
}

}  // namespace

std::string_view name_of(Part part) noexcept { return kNames[static_cast<std::size_t>(part)]; }
std::string_view label_of(Part part) noexcept { return kLabels[static_cast<std::size_t>(part)]; }

Part part_of(std::string_view canonical) noexcept {
  const auto has = [&](std::string_view piece) { return canonical.find(piece) != std::string_view::npos; };
  if (canonical == "embed_tokens") return Part::embedding;
  if (canonical == "lm_head") return Part::head;
  if (canonical == "norm" || canonical.ends_with(".input_norm") || canonical.ends_with(".post_norm"))
    return Part::norms;
  if (has(".linear.")) return Part::linear;
  if (has(".attn.")) return Part::attention;
  if (has(".mlp.")) return Part::mlp;
  if (has(".moe.shared")) return Part::shared_expert;
  return has(".moe.") ? Part::experts : Part::tables;
}

std::int64_t layer_of_weight(std::string_view canonical) noexcept {
  constexpr std::string_view kLayers = "layers.";
  std::int64_t layer = -1;
  if (canonical.starts_with(kLayers)) {
    std::from_chars(canonical.data() + kLayers.size(), canonical.data() + canonical.size(), layer);
  }
  return layer;
}

PartReport InspectReport::total() const {
  PartReport sum;
  for (const PartReport& part : parts) {
    sum.parameters += part.parameters;
    sum.bytes += part.bytes;
    sum.active_parameters += part.active_parameters;
    sum.active_bytes += part.active_bytes;
  }
  return sum;
}

std::uint64_t InspectReport::unused_bytes() const {
  std::uint64_t sum = 0;
  for (const TensorReport& tensor : tensors) sum += tensor.used ? 0 : tensor.bytes;
  return sum;
}

std::vector<TensorGroup> group_tensors(const InspectReport& report) {
  std::vector<TensorGroup> groups;
  std::map<std::tuple<std::string, std::string, DType, Shape>, std::size_t> index;
  for (const TensorReport& tensor : report.tensors) {
    std::tuple key(without_numbers(tensor.name), without_numbers(tensor.use), tensor.dtype, tensor.shape);
    const auto [it, fresh] = index.emplace(std::move(key), groups.size());
    if (fresh) {
      groups.push_back(
          {std::get<0>(it->first), std::get<1>(it->first), tensor.dtype, tensor.shape, tensor.used, tensor.part, 0, 0});
    }
    TensorGroup& group = groups[it->second];
    ++group.count;
    group.bytes += tensor.bytes;
  }
  return groups;
}

std::string layers_in_words(const InspectReport& report) {
  const auto count = [&](LayerKind kind) {
    return std::count_if(report.layers.begin(), report.layers.end(),
                         [&](const LayerReport& layer) { return layer.kind == kind; });
  };
  const auto linear = count(LayerKind::linear_attention), full = count(LayerKind::full_attention);
  if (full == 0) return fmt::format("{} linear attention", linear);
  if (linear == 0) return fmt::format("{} full attention", full);
  return fmt::format("{} linear attention, {} full attention", linear, full);
}

std::uint64_t crossover_tokens(const StateReport& state) {
  if (state.kv_bytes_per_token == 0 || state.fixed_bytes() == 0) return 0;
  return state.fixed_bytes() / state.kv_bytes_per_token + 1;
}

std::string bytes_in_words(std::uint64_t bytes) {
  static constexpr std::array<const char*, 6> kUnits{"B", "kB", "MB", "GB", "TB", "PB"};
  return in_words(static_cast<double>(bytes), kUnits, 0);
}

std::string count_in_words(std::uint64_t count) {
  static constexpr std::array<const char*, 5> kUnits{"", "k", "M", "B", "T"};
  return in_words(static_cast<double>(count), kUnits, 0);
}

}  // namespace sluice

#include "weights/value_scan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/float16.h"

namespace sluice {
namespace {

constexpr std::size_t kChunkBytes = 4u << 20;  // one work item
constexpr std::size_t kBatch = 64;             // work items between two reports of progress
constexpr std::size_t kSmallBytes = 1u << 20;  // small_tensors: weights of one row, and never more than this

// Exponent bits all set: NaN or Inf. The magnitude bits tell zeros, negative ones too.
template <typename Bits>
struct Layout;
template <>
struct Layout<std::uint32_t> {
  static constexpr std::uint32_t kMagnitude = 0x7fffffffu;
};
template <>
struct Layout<std::uint16_t> {
  static constexpr std::uint16_t kMagnitude = 0x7fffu;
};

struct Facts {
  std::uint64_t first = 0;  // element of the first NaN or Inf
  std::uint64_t count = 0;  // NaNs and Infs
  bool any = false;         // a value other than zero
};

template <typename Bits, Bits kExponent>
Facts look_at(const std::byte* bytes, std::uint64_t elements) noexcept {
  constexpr std::uint64_t kBlock = 4096;
  Facts facts;
  for (std::uint64_t begin = 0; begin < elements; begin += kBlock) {
    const std::uint64_t end = std::min(elements, begin + kBlock);
    Bits bad = 0, all = 0;
    const auto load = [&](std::uint64_t i) {
      Bits value;
      std::memcpy(&value, bytes + i * sizeof value, sizeof value);
      return value;
    };
    for (std::uint64_t i = begin; i < end; ++i) {  // branch-free: this loop reads whole checkpoints
      const Bits value = load(i);
      all = static_cast<Bits>(all | value);
      bad = static_cast<Bits>(bad | ((value & kExponent) == kExponent ? 1 : 0));
    }
    facts.any = facts.any || (all & Layout<Bits>::kMagnitude) != 0;
    for (std::uint64_t i = begin; bad != 0 && i < end; ++i) {
      if ((load(i) & kExponent) != kExponent) continue;
      if (facts.count++ == 0) facts.first = i;
    }
  }
  return facts;
}

Facts look_at(DType dtype, std::span<const std::byte> bytes) noexcept {
  const std::uint64_t elements = bytes.size() / dtype_bytes(dtype);
  if (dtype == DType::f32) return look_at<std::uint32_t, 0x7f800000u>(bytes.data(), elements);
  if (dtype == DType::bf16) return look_at<std::uint16_t, 0x7f80u>(bytes.data(), elements);
  return look_at<std::uint16_t, 0x7c00u>(bytes.data(), elements);
}

// The tensor that holds the address, and the element there.
std::pair<std::string_view, std::uint64_t> place_of(const ModelSource& model, const CanonicalWeight& weight,
                                                    const std::byte* at) {
  for (const std::string_view name : weight.tensors) {
    const TensorView& view = *model.checkpoint.find(name)->view;
    const auto offset = reinterpret_cast<std::uintptr_t>(at) - reinterpret_cast<std::uintptr_t>(view.bytes.data());
    if (offset < view.bytes.size()) return {name, offset / dtype_bytes(view.dtype)};
  }
  SLUICE_CHECK(false && "an address outside the weight");
  return {};
}

struct Chunk {
  std::size_t weight = 0;
  DType dtype = DType::bf16;
  std::span<const std::byte> bytes;
  const MappedFile* file = nullptr;
  bool release = false;
  Facts facts;
};

bool is_small(const CanonicalWeight& weight) {
  std::uint64_t bytes = 0;
  for (const WeightPiece& piece : weight.pieces) bytes += piece.bytes.size();
  return weight.shape.size() == 1 && bytes <= kSmallBytes;
}

std::vector<Chunk> cut(const ModelSource& model, ScanScope scope) {
  std::vector<Chunk> chunks;
  const auto weights = model.weights.weights();
  for (std::size_t w = 0; w < weights.size(); ++w) {
    const bool small = is_small(weights[w]);
    if (scope == ScanScope::small_tensors && !small) continue;
    for (const WeightPiece& piece : weights[w].pieces) {
      const MappedFile& file = model.checkpoint.mapping_of(piece.bytes);
      for (std::size_t at = 0; at < piece.bytes.size(); at += kChunkBytes) {
        const std::size_t count = std::min(kChunkBytes, piece.bytes.size() - at);
        chunks.push_back({w, piece.dtype, piece.bytes.subspan(at, count), &file, !small, {}});
      }
    }
  }
  return chunks;
}

void look_at(std::vector<Chunk>& chunks, Executor& executor, Progress& progress) {
  std::uint64_t total = 0, done = 0;
  for (const Chunk& chunk : chunks) total += chunk.bytes.size();
  for (std::size_t begin = 0; begin < chunks.size(); begin += kBatch) {
    const std::size_t count = std::min(kBatch, chunks.size() - begin);
    parallel_for(executor, static_cast<std::int64_t>(count), [&](std::int64_t i) noexcept {
      Chunk& chunk = chunks[begin + static_cast<std::size_t>(i)];
      chunk.facts = look_at(chunk.dtype, chunk.bytes);
      if (chunk.release) chunk.file->release(chunk.bytes);
    });
    for (std::size_t i = 0; i < count; ++i) done += chunks[begin + i].bytes.size();
    progress.advance(done, total);
  }
}

class Findings {
 public:
  Findings(const ModelSource& model, std::vector<ValueFinding>& out) : model_(model), out_(out) {}

  void add_chunks(const std::vector<Chunk>& chunks) {
    for (std::size_t begin = 0, end = 0; begin < chunks.size(); begin = end) {
      bool any = false;
      std::uint64_t count = 0;
      const Chunk* first = nullptr;
      for (end = begin; end < chunks.size() && chunks[end].weight == chunks[begin].weight; ++end) {
        any = any || chunks[end].facts.any;
        count += chunks[end].facts.count;
        if (first == nullptr && chunks[end].facts.count > 0) first = &chunks[end];
      }
      const CanonicalWeight& weight = model_.weights.weights()[chunks[begin].weight];
      if (first != nullptr) add_not_finite(weight, *first, count);
      if (!any && weight.shape.size() > 1) {
        add(FindingKind::all_zero, weight.tensors.front(), 0, weight.elements(), "holds nothing but zeros");
      }
    }
  }

  void add_small() {
    for (const CanonicalWeight& weight : model_.weights.weights()) {
      if (weight.elementwise == Elementwise::plus_one) {
        look_at_norm(weight, 1, FindingKind::shifted_norm,
                     "its values centre on 1, as if 1 had been added already; it is used as 1 + w");
      } else if (weight.name.ends_with(".linear.norm")) {
        look_at_norm(weight, 0, FindingKind::centred_norm,
                     "its values centre on 0, as if 1 had been subtracted; it is used as it is");
      } else if (weight.name.ends_with(".linear.A_log")) {
        look_at_decay(weight, model_.weights.at(weight.name.substr(0, weight.name.size() - 5) + "dt_bias"));
      }
    }
  }

 private:
  void add(FindingKind kind, std::string_view tensor, std::uint64_t element, std::uint64_t count,
           std::string_view what) {
    out_.push_back({kind, std::string(tensor), element, count, fmt::format("{}: {}", tensor, what)});
  }

  void add_not_finite(const CanonicalWeight& weight, const Chunk& chunk, std::uint64_t count) {
    const std::byte* at = chunk.bytes.data() + chunk.facts.first * dtype_bytes(chunk.dtype);
    const auto [tensor, element] = place_of(model_, weight, at);
    float value = 0;
    const CanonicalWeight one{"", {1}, {{chunk.dtype, {at, dtype_bytes(chunk.dtype)}}}, Elementwise::none, {}};
    read_elements<float>(one, 0, {&value, 1});
    add(FindingKind::not_finite, tensor, element, count,
        fmt::format("element {} is {}{}", element, value,
                    count > 1 ? fmt::format(", and {} more are not finite", count - 1) : ""));
  }

  // A norm whose stored values lie as those of the other kind of norm do: close to `centre`, none near the other
  // neutral value.
  void look_at_norm(const CanonicalWeight& weight, int centre, FindingKind kind, std::string_view what) {
    const std::vector<float> values = read_all<float>(weight);
    const double added = weight.elementwise == Elementwise::plus_one ? 1 : 0, other = 1 - centre;
    double sum = 0;
    std::uint64_t beyond = 0;  // values nearer to the neutral value this norm should have
    for (const float value : values) {
      const double stored = static_cast<double>(value) - added;
      if (!std::isfinite(stored)) return;  // a finding of its own
      sum += stored;
      if (std::abs(stored - other) < std::abs(stored - centre)) ++beyond;
    }
    const double mean = sum / static_cast<double>(values.size());
    if (values.size() < 4 || std::abs(mean - centre) > 0.25 || beyond * 20 > values.size()) return;
    add(kind, weight.tensors.front(), 0, values.size(), fmt::format("{} (mean {:.3f})", what, mean));
  }

  // decay = exp(-exp(A_log) * softplus(a + dt_bias)) at a = 0, in f32 as the model computes it.
  void look_at_decay(const CanonicalWeight& a_log, const CanonicalWeight& dt_bias) {
    const std::vector<float> a = read_all<float>(a_log), dt = read_all<float>(dt_bias);
    std::uint64_t count = 0, first = 0;
    float shown = 0;
    for (std::size_t head = 0; head < a.size(); ++head) {
      const float softplus = dt[head] > 20 ? dt[head] : std::log1p(std::exp(dt[head]));
      const float decay = std::exp(-std::exp(a[head]) * softplus);
      if (decay > 0 && decay < 1) continue;
      if (count++ == 0) {
        first = head;
        shown = decay;
      }
    }
    if (count == 0) return;
    add(FindingKind::decay_range, a_log.tensors.front(), first, count,
        fmt::format("head {} has A_log {} and dt_bias {}: its decay at rest is {}, so that its state is {}{}", first,
                    a[first], dt[first], shown, shown == 0 ? "forgotten at every token" : "never forgotten",
                    count > 1 ? fmt::format("; so have {} more heads", count - 1) : ""));
  }

  const ModelSource& model_;
  std::vector<ValueFinding>& out_;
};

}  // namespace

std::vector<ValueFinding> scan_values(const ModelSource& model, ScanScope scope, Executor& executor,
                                      Progress& progress) {
  std::vector<Chunk> chunks = cut(model, scope);
  look_at(chunks, executor, progress);
  std::vector<ValueFinding> out;
  Findings findings(model, out);
  findings.add_chunks(chunks);
  findings.add_small();
  return out;
}

std::optional<NonFinite> find_non_finite(const WeightPiece& piece) noexcept {
  const Facts facts = look_at(piece.dtype, piece.bytes);
  if (facts.count == 0) return std::nullopt;
  return NonFinite{facts.first, facts.count};
}

}  // namespace sluice

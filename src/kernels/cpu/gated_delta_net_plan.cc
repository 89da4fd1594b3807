#include "kernels/cpu/gated_delta_net_plan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace sluice::gdn {
namespace {

// Enough items for the cores of a large machine; fewer lanes would leave some idle, more would only cost scratch.
constexpr std::int64_t kMaxLanes = 64;
// With at least this many items a row's value heads share the work of their key head; with fewer every head is an item.
constexpr std::int64_t kEnoughItems = 16;

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Consecutive value heads that read the same key head and the same query head.
std::int64_t sharing_heads(const GatedDeltaNetShape& shape) {
  if (shape.q_heads > shape.v_heads || shape.v_heads == 0) return 1;
  return std::gcd(shape.v_heads / shape.k_heads, shape.v_heads / shape.q_heads);
}

std::int64_t heads_per_item(const GatedDeltaNetShape& shape) {
  const std::int64_t sharing = sharing_heads(shape);
  if (shape.rows * (shape.v_heads / sharing) < kEnoughItems) return 1;
  std::int64_t heads = std::min(sharing, kMaxHeadsPerItem);
  while (sharing % heads != 0) --heads;
  return heads;
}

class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  // Room for a * b * c floats.
  float* take(std::int64_t a, std::int64_t b = 1, std::int64_t c = 1) {
    float* at = base_ == nullptr ? nullptr : reinterpret_cast<float*>(base_ + used_);
    const auto size = [](std::int64_t x) { return static_cast<std::size_t>(x); };
    const std::size_t bytes =
        saturating_product(saturating_product(size(a), size(b)), saturating_product(size(c), sizeof(float)));
    used_ = saturating_sum(used_, saturating_sum(bytes, 63) / 64 * 64);
    return at;
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

}  // namespace

std::size_t saturating_product(std::size_t a, std::size_t b) noexcept {
  std::size_t out;
  return __builtin_mul_overflow(a, b, &out) ? SIZE_MAX : out;
}

std::size_t saturating_sum(std::size_t a, std::size_t b) noexcept {
  std::size_t out;
  return __builtin_add_overflow(a, b, &out) ? SIZE_MAX : out;
}

Plan make_plan(const GatedDeltaNetArgs& args) noexcept {
  const GatedDeltaNetShape& s = args.shape;
  Plan plan;
  plan.args = &args;
  plan.scale = args.scale == 0.0f ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.k_dim))) : args.scale;
  plan.queries = s.v_heads > 0 ? std::max<std::int64_t>(s.q_heads / s.v_heads, 1) : 1;
  plan.heads_per_item = heads_per_item(s);
  plan.items = s.rows * (s.v_heads / plan.heads_per_item);
  plan.lanes = std::min(plan.items, kMaxLanes);
  return plan;
}

Segment segment_of(const GatedDeltaNetArgs& args, std::int64_t row) noexcept {
  if (args.cu_seqlens == nullptr) {
    const std::int64_t length = args.shape.tokens / args.shape.rows;
    return {row * length, (row + 1) * length};
  }
  std::int32_t ends[2];
  std::memcpy(ends, reinterpret_cast<const std::byte*>(args.cu_seqlens) + row * 4, sizeof ends);
  return {ends[0], ends[1]};
}

Item item_of(const Plan& plan, std::int64_t index) noexcept {
  const std::int64_t per_row = plan.args->shape.v_heads / plan.heads_per_item;
  return {index / per_row, index % per_row * plan.heads_per_item, plan.heads_per_item};
}

std::int64_t captured_tokens(const GatedDeltaNetArgs& args, std::int64_t row) noexcept {
  if (args.shape.capacity == 0 || args.capsule == nullptr || !args.capture_active || args.capture_count == nullptr)
    return 0;
  std::int32_t count = 0;
  std::memcpy(&count, reinterpret_cast<const std::byte*>(args.capture_count) + row * 4, sizeof count);
  const Segment segment = segment_of(args, row);
  return std::clamp<std::int64_t>(count, 0, std::min(args.shape.capacity, segment.end - segment.begin));
}

std::size_t lay_out(const GatedDeltaNetShape& s, std::byte* base, Workspace& w) noexcept {
  const std::int64_t queries = s.v_heads > 0 ? std::max<std::int64_t>(s.q_heads / s.v_heads, 1) : 1;
  const std::int64_t heads = heads_per_item(s);
  w.cap = std::min(s.tokens, kGatedDeltaNetChunk) + kRowPad;
  w.kpad = round_up(s.k_dim, 16) + kStridePad;
  w.vpad = round_up(s.v_dim, kColumnAlign);
  Carver carver(base);
  w.keys = carver.take(w.cap, w.kpad);
  w.queries = carver.take(queries, w.cap, w.kpad);
  w.values = carver.take(w.cap, w.vpad);
  w.outputs = carver.take(queries, w.cap, w.vpad);
  if (s.per_key) w.factors = carver.take(w.cap, w.kpad);
  w.decayed_keys = carver.take(w.cap, w.kpad);
  w.decayed_queries = carver.take(w.cap, w.kpad);
  w.updates = carver.take(w.vpad);
  w.row_state = carver.take(heads, s.v_dim, s.k_dim);
  if (s.per_key || s.tokens < kGatedDeltaNetMinChunk) return carver.used();
  w.keys_t = carver.take(s.k_dim, kChunkStride);
  w.queries_t = carver.take(queries, s.k_dim, kChunkStride);
  w.key_key = carver.take(w.cap, kChunkStride);
  w.query_key = carver.take(queries, w.cap, kChunkStride);
  w.solve = carver.take(w.cap, kChunkStride);
  w.read = carver.take(queries, w.cap, kChunkStride);
  w.update = carver.take(w.cap, kColumnAlign);
  w.update_decayed = carver.take(w.cap, kColumnAlign);
  const std::int64_t panel_rows = round_up(s.k_dim, 4) + kRowPad;
  w.panels = carver.take(heads, w.vpad, panel_rows);
  w.panel_floats = base == nullptr ? 0 : w.vpad * panel_rows;
  return carver.used();
}

std::int64_t query_head(const GatedDeltaNetShape& s, std::int64_t head) noexcept {
  return s.q_heads > s.v_heads ? head * (s.q_heads / s.v_heads) : head / (s.v_heads / s.q_heads);
}

std::int64_t output_head(const GatedDeltaNetShape& s, std::int64_t head) noexcept {
  return s.q_heads > s.v_heads ? head * (s.q_heads / s.v_heads) : head;
}

Capsule capsule_of(const GatedDeltaNetArgs& args, std::int64_t row) noexcept {
  const GatedDeltaNetShape& s = args.shape;
  if (args.capsule == nullptr || s.capacity == 0) return {};
  float* at = args.capsule + row * s.capsule_width();
  const std::int64_t keys_at = s.capacity * s.decay_width();
  return {at, at + keys_at, at + keys_at + s.capacity * s.k_heads * s.k_dim};
}

void clear_capsule(const GatedDeltaNetArgs& args, const Item& item) noexcept {
  const GatedDeltaNetShape& s = args.shape;
  const Capsule capsule = capsule_of(args, item.row);
  if (capsule.decay == nullptr) return;
  const std::int64_t width = s.per_key ? s.k_dim : 1;
  const std::int64_t group = s.v_heads / s.k_heads;
  const std::int64_t first_key =
      (item.head + group - 1) / group;  // of the key heads whose first value head is the item's
  const std::int64_t last_key = (item.head + item.heads + group - 1) / group;
  const auto zero = [](float* at, std::int64_t floats) {
    std::memset(at, 0, static_cast<std::size_t>(floats) * sizeof(float));
  };
  for (std::int64_t slot = 0; slot < s.capacity; ++slot) {
    zero(capsule.decay + (slot * s.v_heads + item.head) * width, item.heads * width);
    zero(capsule.key + (slot * s.k_heads + first_key) * s.k_dim, (last_key - first_key) * s.k_dim);
    zero(capsule.delta + (slot * s.v_heads + item.head) * s.v_dim, item.heads * s.v_dim);
  }
}

}  // namespace sluice::gdn

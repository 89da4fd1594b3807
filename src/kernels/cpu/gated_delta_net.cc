#include "kernels/cpu/gated_delta_net.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/float16.h"
#include "kernels/cpu/gated_delta_net_plan.h"
#include "kernels/cpu/rounding.h"

namespace sluice {

namespace avx2 {
void gated_delta_net_item(const gdn::Plan& plan, const gdn::Item& item, std::byte* scratch) noexcept;
}
namespace avx512 {
void gated_delta_net_item(const gdn::Plan& plan, const gdn::Item& item, std::byte* scratch) noexcept;
}

namespace {

using gdn::Capsule;
using gdn::Item;
using gdn::Plan;
using gdn::Segment;

std::int64_t element_bytes(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

double load(const void* data, DType dtype, std::int64_t index) {
  const std::byte* at = static_cast<const std::byte*>(data) + index * element_bytes(dtype);
  if (dtype == DType::f32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return dtype == DType::f16 ? to_f32(f16{bits}) : to_f32(bf16{bits});
}

void store(void* data, DType dtype, std::int64_t index, double value) {
  std::byte* at = static_cast<std::byte*>(data) + index * element_bytes(dtype);
  const float rounded = static_cast<float>(value);
  if (dtype == DType::f32) {
    std::memcpy(at, &rounded, sizeof rounded);
    return;
  }
  const std::uint16_t bits = dtype == DType::f16 ? to_f16(rounded).bits : to_bf16(rounded).bits;
  std::memcpy(at, &bits, sizeof bits);
}

double load(const HeadsView& view, DType dtype, std::int64_t token, std::int64_t head, std::int64_t i) {
  return load(view.data, dtype, token * view.token_stride + head * view.head_stride + i);
}

// The specification: one value head of one row, token by token in double precision.
class ScalarHead {
 public:
  ScalarHead(const Plan& plan, std::int64_t row, std::int64_t head, std::byte* scratch)
      : plan_(plan), a_(*plan.args), s_(a_.shape), row_(row), head_(head) {
    double* at = reinterpret_cast<double*>(scratch);
    state_ = at, at += s_.v_dim * s_.k_dim;
    key_ = at, at += s_.k_dim;
    query_ = at, at += s_.k_dim;
    decay_ = at;
  }

  static std::size_t bytes(const GatedDeltaNetShape& s) {
    const auto v_dim = static_cast<std::size_t>(s.v_dim), k_dim = static_cast<std::size_t>(s.k_dim);
    const std::size_t doubles = gdn::saturating_sum(gdn::saturating_product(v_dim, k_dim), 3 * k_dim);
    return gdn::saturating_sum(gdn::saturating_product(doubles, sizeof(double)), 63) / 64 * 64;
  }

  void run() {
    const Segment segment = gdn::segment_of(a_, row_);
    const std::int64_t captured = gdn::captured_tokens(a_, row_);
    const std::int64_t state_at = (row_ * s_.v_heads + head_) * s_.v_dim * s_.k_dim;
    for (std::int64_t i = 0; i < s_.v_dim * s_.k_dim; ++i) {
      state_[i] = a_.initial_state == nullptr ? 0.0 : load(a_.initial_state, DType::f32, state_at + i);
    }
    clear_capsule();
    for (std::int64_t t = segment.begin; t < segment.end; ++t) {
      load_key(t);
      load_decay(t);
      update(t, t - segment.begin < captured ? t - segment.begin : -1);
      for (std::int64_t j = 0; j < plan_.queries; ++j) read(t, j);
    }
    if (a_.final_state == nullptr) return;
    for (std::int64_t i = 0; i < s_.v_dim * s_.k_dim; ++i) store(a_.final_state, DType::f32, state_at + i, state_[i]);
  }

 private:
  void load_vector(const HeadsView& view, std::int64_t t, std::int64_t head, double* out) const {
    double sum = 0;
    for (std::int64_t i = 0; i < s_.k_dim; ++i) {
      out[i] = load(view, a_.dtype, t, head, i);
      sum += out[i] * out[i];
    }
    if (!a_.qk_l2_norm) return;
    for (std::int64_t i = 0; i < s_.k_dim; ++i) out[i] /= std::sqrt(sum + a_.qk_l2_epsilon);
  }

  std::int64_t key_head() const { return head_ / (s_.v_heads / s_.k_heads); }
  void load_key(std::int64_t t) { load_vector(a_.key, t, key_head(), key_); }

  void load_decay(std::int64_t t) {
    for (std::int64_t i = 0; i < s_.k_dim; ++i) {
      const std::int64_t channel = s_.per_key ? i : 0;
      decay_[i] = has_decay(a_.rule)
                      ? std::exp(std::max(gate(load(a_.decay, a_.gate_dtype, t, head_, channel), channel), -200.0))
                      : 1.0;
    }
  }

  double gate(double x, std::int64_t channel) const {
    if (a_.gate_activation == GateActivation::none) return x;
    const double a = std::exp(load(a_.a_log, DType::f32, a_.a_log_per_key ? head_ * s_.k_dim + channel : head_));
    x += load(a_.dt_bias, DType::f32, a_.dt_bias_per_key ? head_ * s_.k_dim + channel : head_);
    if (a_.gate_activation == GateActivation::sigmoid) return a_.gate_lower_bound / (1 + std::exp(-a * x));
    return -a * (x > 20 ? x : std::log1p(std::exp(x)));
  }

  double beta(std::int64_t t) const {
    if (a_.beta.data == nullptr) return 1.0;
    const double x = load(a_.beta, a_.gate_dtype, t, head_, 0);
    if (a_.beta_activation == BetaActivation::none) return x;
    return (a_.beta_activation == BetaActivation::twice_sigmoid ? 2.0 : 1.0) / (1 + std::exp(-x));
  }

  // S = S * decay; u = beta * (v - S k); S = S + u k^T. `slot` of the capsule describes the token, -1 for none.
  void update(std::int64_t t, std::int64_t slot) {
    const double b = beta(t);
    for (std::int64_t v = 0; v < s_.v_dim; ++v) {
      double* state = state_ + v * s_.k_dim;
      double retrieved = 0;
      for (std::int64_t i = 0; i < s_.k_dim; ++i) {
        state[i] *= decay_[i];
        if (has_delta(a_.rule)) retrieved += state[i] * key_[i];
      }
      const double u = b * (load(a_.value, a_.dtype, t, head_, v) - retrieved);
      for (std::int64_t i = 0; i < s_.k_dim; ++i) state[i] += u * key_[i];
      if (slot >= 0) {
        store(gdn::capsule_of(a_, row_).delta, DType::f32, (slot * s_.v_heads + head_) * s_.v_dim + v, u);
      }
    }
    if (slot >= 0) capture(slot);
  }

  void capture(std::int64_t slot) {
    const Capsule capsule = gdn::capsule_of(a_, row_);
    const std::int64_t width = s_.per_key ? s_.k_dim : 1;
    for (std::int64_t i = 0; i < width; ++i) {
      store(capsule.decay, DType::f32, slot * s_.decay_width() + head_ * width + i, decay_[i]);
    }
    if (head_ % (s_.v_heads / s_.k_heads) != 0) return;  // the first head of a group writes the key they share
    for (std::int64_t i = 0; i < s_.k_dim; ++i) {
      store(capsule.key, DType::f32, (slot * s_.k_heads + key_head()) * s_.k_dim + i, key_[i]);
    }
  }

  void read(std::int64_t t, std::int64_t j) {
    load_vector(a_.query, t, gdn::query_head(s_, head_) + j, query_);
    for (std::int64_t v = 0; v < s_.v_dim; ++v) {
      double sum = 0;
      for (std::int64_t i = 0; i < s_.k_dim; ++i) sum += state_[v * s_.k_dim + i] * query_[i];
      const std::int64_t out = (t * s_.output_heads() + gdn::output_head(s_, head_) + j) * s_.v_dim + v;
      store(a_.output, a_.dtype, out, sum * plan_.scale);
    }
  }

  void clear_capsule() { gdn::clear_capsule(a_, {row_, head_, 1}); }

  const Plan& plan_;
  const GatedDeltaNetArgs& a_;
  const GatedDeltaNetShape& s_;
  std::int64_t row_;
  std::int64_t head_;
  double* state_;
  double* key_;
  double* query_;
  double* decay_;
};

void run_scalar(const Plan& plan, const Item& item, std::byte* scratch) {
  for (std::int64_t head = item.head; head < item.head + item.heads; ++head) {
    ScalarHead(plan, item.row, head, scratch).run();
  }
}

std::size_t lane_bytes(Level level, const GatedDeltaNetShape& shape) {
  if (level == Level::scalar) return ScalarHead::bytes(shape);
  gdn::Workspace unused;
  return gdn::lay_out(shape, nullptr, unused);
}

}  // namespace

std::size_t gated_delta_net_scratch_bytes(Level level, const GatedDeltaNetShape& shape) noexcept {
  if (shape.rows == 0 || shape.v_heads == 0) return 0;
  GatedDeltaNetArgs args;
  args.shape = shape;
  const auto lanes = static_cast<std::size_t>(gdn::make_plan(args).lanes);
  // Half of the address space is as unobtainable as all of it, and leaves the caller room to add to the number.
  return std::min(gdn::saturating_sum(gdn::saturating_product(lanes, lane_bytes(level, shape)), 64), SIZE_MAX / 2);
}

void gated_delta_net(Level level, const GatedDeltaNetArgs& args, std::span<std::byte> scratch,
                     Executor& executor) noexcept {
  if (args.shape.rows == 0 || args.shape.v_heads == 0) return;
  const Plan plan = gdn::make_plan(args);
  const auto run_item = level == Level::scalar ? run_scalar
                        : level == Level::avx2 ? avx2::gated_delta_net_item
                                               : avx512::gated_delta_net_item;
  const std::size_t bytes = lane_bytes(level, args.shape);
  std::byte* base = line_aligned(scratch);
  // Whoever comes first takes all the items that nobody else has taken: as much scratch stays in use, and in the caches, as
  // threads are at work.
  std::atomic<std::int64_t> next{0};
  parallel_for(executor, plan.lanes, [&](std::int64_t lane) noexcept {
    std::byte* own = base + static_cast<std::size_t>(lane) * bytes;
    for (std::int64_t i = next.fetch_add(1); i < plan.items; i = next.fetch_add(1)) {
      run_item(plan, gdn::item_of(plan, i), own);
    }
  });
}

}  // namespace sluice

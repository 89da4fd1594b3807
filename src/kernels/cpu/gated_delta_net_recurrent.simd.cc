// The token recurrence of GatedDeltaNet, and the gates of both forms.
#include "kernels/cpu/gated_delta_net_pieces.h"
#include "kernels/cpu/gated_delta_net_simd.h"

namespace sluice::SLUICE_LEVEL {
namespace {

constexpr Index kStateRows = kLanes == 16 ? 8 : 4;  // rows of the state in flight: as many sums as registers allow
constexpr Index kRowsInCache = 32;                  // 16 KiB of a state of 128 channels

// log-space decay from the raw input: a = exp(a_log), bias = dt_bias.
HWY_INLINE V activate(const GatedDeltaNetArgs& args, V x, V a, V bias) {
  if (args.gate_activation == GateActivation::softplus) {
    x = hn::Neg(hn::Mul(a, softplus(hn::Add(x, bias))));
  } else if (args.gate_activation == GateActivation::sigmoid) {
    x = hn::Mul(hn::Set(kF32, args.gate_lower_bound), sigmoid(hn::Mul(a, hn::Add(x, bias))));
  }
  return hn::IfThenElse(hn::Lt(x, hn::Set(kF32, -200.0f)), hn::Set(kF32, -200.0f), x);  // NaN stays
}

// out[t] = the view's value of `head` at token begin + t, t < count; zero up to kGateCap.
void gather(const HeadsView& view, DType dtype, Index begin, Index count, Index head, float* out) {
  const std::int64_t size = dtype == DType::f32 ? 4 : 2;
  const std::byte* from =
      static_cast<const std::byte*>(view.data) + (begin * view.token_stride + head * view.head_stride) * size;
  alignas(64) std::byte dense[kGateCap * 4];
  for (Index t = 0; t < count; ++t) {
    if (dtype == DType::f32) {
      std::memcpy(dense + t * 4, from + t * view.token_stride * 4, 4);
    } else {
      std::memcpy(dense + t * 2, from + t * view.token_stride * 2, 2);
    }
  }
  load_row(dense, dtype, count, out, kGateCap);
}

// a_log or dt_bias for kLanes consecutive channels of a head, or its one value everywhere.
HWY_INLINE V gate_parameter(const float* values, bool per_key, Index head, Index k_dim, Index channel) {
  if (values == nullptr) return hn::Zero(kF32);
  if (!per_key) return hn::Set(kF32, load_one(values + head));
  const Index left = k_dim - channel;
  const float* at = values + head * k_dim + channel;
  if (left >= kLanes) return hn::LoadU(kF32, at);
  return hn::MaskedLoad(hn::FirstN(kF32, static_cast<std::size_t>(left)), kF32, at);
}

void read_key_factors(const GatedDeltaNetArgs& args, const gdn::Workspace& w, Index begin, Index count, Index head) {
  const std::int64_t size = args.gate_dtype == DType::f32 ? 4 : 2;
  const Index k_dim = args.shape.k_dim;
  for (Index t = 0; t < count; ++t) {
    float* row = w.factors + t * w.kpad;
    const std::int64_t at = (begin + t) * args.decay.token_stride + head * args.decay.head_stride;
    load_row(static_cast<const std::byte*>(args.decay.data) + at * size, args.gate_dtype, k_dim, row, w.kpad);
    for (Index i = 0; i < k_dim; i += kLanes) {
      const V a = exp_any(gate_parameter(args.a_log, args.a_log_per_key, head, k_dim, i));
      const V bias = gate_parameter(args.dt_bias, args.dt_bias_per_key, head, k_dim, i);
      hn::StoreU(exp_any(activate(args, hn::LoadU(kF32, row + i), a, bias)), kF32, row + i);
    }
  }
}

void read_beta(const GatedDeltaNetArgs& args, Index begin, Index count, Index head, HeadGates& gates) {
  if (args.beta.data == nullptr) {
    for (Index t = 0; t < kGateCap; ++t) gates.beta[t] = t < count ? 1.0f : 0.0f;
    return;
  }
  gather(args.beta, args.gate_dtype, begin, count, head, gates.beta);
  if (args.beta_activation == BetaActivation::none) return;
  const V factor = hn::Set(kF32, args.beta_activation == BetaActivation::twice_sigmoid ? 2.0f : 1.0f);
  for (Index t = 0; t < count; t += kLanes) {
    hn::Store(hn::Mul(factor, sigmoid(hn::Load(kF32, gates.beta + t))), kF32, gates.beta + t);
  }
  for (Index t = count; t < kGateCap; ++t) gates.beta[t] = 0.0f;
}

void read_head_decay(const GatedDeltaNetArgs& args, Index begin, Index count, Index head, HeadGates& gates) {
  gather(args.decay, args.gate_dtype, begin, count, head, gates.log_decay);
  const V a = exp_any(gate_parameter(args.a_log, false, head, 1, 0));
  const V bias = gate_parameter(args.dt_bias, false, head, 1, 0);
  for (Index t = 0; t < count; t += kLanes) {
    const auto real = hn::FirstN(kF32, static_cast<std::size_t>(count - t < kLanes ? count - t : kLanes));
    const V g = hn::IfThenElseZero(real, activate(args, hn::Load(kF32, gates.log_decay + t), a, bias));
    gates.falling = gates.falling && hn::AllTrue(kF32, hn::Le(g, hn::Zero(kF32)));
    hn::Store(g, kF32, gates.log_decay + t);
    hn::Store(exp_any(g), kF32, gates.factor + t);
  }
}

using Mask = hn::Mask<D>;
using V4 = hn::Vec<hn::Full128<float>>;
constexpr hn::Full128<float> kF32x4;

// The state's last, incomplete vector of a row is read and written under a mask: the next head's state lies behind it.
template <bool kPartial>
HWY_INLINE V load_state(const float* at, [[maybe_unused]] Mask mask) {
  if constexpr (kPartial) return hn::MaskedLoad(mask, kF32, at);
  return hn::LoadU(kF32, at);
}

template <bool kPartial>
HWY_INLINE void store_state(V x, float* at, [[maybe_unused]] Mask mask) {
  if constexpr (kPartial) {
    hn::BlendedStore(x, mask, kF32, at);
  } else {
    hn::StoreU(x, kF32, at);
  }
}

// One token of one head. With s the state before it, in two passes over a few rows at a time:
//     u = beta (v - s (d k)),   y = s (d q) + u (k . q),   s' = d s + u k.
// Both sums run over the old state, so that the second pass waits for nothing and the next rows' sums hide its latency.
struct Step {
  Index k_dim = 0;
  Mask tail;                             // of the last, incomplete vector of k_dim
  const float* key = nullptr;            // [kpad] k
  const float* decayed_key = nullptr;    // [kpad] d k; null for rules that retrieve nothing
  const float* decayed_query = nullptr;  // [kpad] d q
  const float* factors = nullptr;        // per key: [kpad] d
  V factor;                              // otherwise d
  V4 beta;
  V4 key_query;                   // k . q
  const float* values = nullptr;  // [v_dim]
  const float* source = nullptr;  // [v_dim, k_dim] before the token
  float* state = nullptr;         // [v_dim, k_dim] after it; may be source
  float* outputs = nullptr;       // [v_dim]
};

template <Index R, bool kDelta, bool kPartial>
HWY_INLINE void sum_rows(const Step& step, const float* source, Index i, V (&retrieved)[R], V (&read)[R]) {
  V key;
  if constexpr (kDelta) key = hn::LoadU(kF32, step.decayed_key + i);
  const V query = hn::LoadU(kF32, step.decayed_query + i);
#pragma GCC unroll 8
  for (Index r = 0; r < R; ++r) {
    const V state = load_state<kPartial>(source + r * step.k_dim + i, step.tail);
    if constexpr (kDelta) retrieved[r] = hn::MulAdd(state, key, retrieved[r]);
    read[r] = hn::MulAdd(state, query, read[r]);
  }
}

// Rows [v, v + R): u into `u`, y into the outputs.
template <Index R, bool kDelta>
HWY_INLINE void solve_rows(const Step& step, Index v, float* u) {
  V retrieved[R], read[R];
#pragma GCC unroll 8
  for (Index r = 0; r < R; ++r) retrieved[r] = read[r] = hn::Zero(kF32);
  const float* source = step.source + v * step.k_dim;
  const Index whole = step.k_dim / kLanes * kLanes;
  for (Index i = 0; i < whole; i += kLanes) {
    // What comes after the rows that come next, in the order of memory, one line for every line read.
    for (Index at = 0; at < R * kLanes; at += 16) hwy::Prefetch(source + 2 * R * step.k_dim + i * R + at);
    sum_rows<R, kDelta, false>(step, source, i, retrieved, read);
  }
  if (whole < step.k_dim) sum_rows<R, kDelta, true>(step, source, whole, retrieved, read);
  const auto finish = [&](V4 value, V4 old_value, V4 old_read, auto&& store) {
    const V4 update = hn::Mul(step.beta, hn::Sub(value, old_value));
    store(update, hn::MulAdd(update, step.key_query, old_read));
  };
  if constexpr (R == 1) {
    const V4 old_value = kDelta ? sums4(retrieved[0], retrieved[0], retrieved[0], retrieved[0]) : hn::Zero(kF32x4);
    finish(hn::Set(kF32x4, step.values[v]), old_value, sums4(read[0], read[0], read[0], read[0]), [&](V4 update, V4 y) {
      u[0] = hn::GetLane(update);
      step.outputs[v] = hn::GetLane(y);
    });
  } else {
#pragma GCC unroll 2
    for (Index r = 0; r < R; r += 4) {
      const V4 old_value =
          kDelta ? sums4(retrieved[r], retrieved[r + 1], retrieved[r + 2], retrieved[r + 3]) : hn::Zero(kF32x4);
      const V4 old_read = sums4(read[r], read[r + 1], read[r + 2], read[r + 3]);
      finish(hn::LoadU(kF32x4, step.values + v + r), old_value, old_read, [&](V4 update, V4 y) {
        hn::StoreU(update, kF32x4, u + r);
        hn::StoreU(y, kF32x4, step.outputs + v + r);
      });
    }
  }
}

template <Index R, bool kPerKey, bool kPartial>
HWY_INLINE void write_rows(const Step& step, Index v, Index i, const V (&u)[R]) {
  const V key = hn::LoadU(kF32, step.key + i);
  const V factor = kPerKey ? hn::LoadU(kF32, step.factors + i) : step.factor;
  const Index at = v * step.k_dim + i;
#pragma GCC unroll 8
  for (Index r = 0; r < R; ++r) {
    const V old = hn::Mul(load_state<kPartial>(step.source + at + r * step.k_dim, step.tail), factor);
    store_state<kPartial>(hn::MulAdd(u[r], key, old), step.state + at + r * step.k_dim, step.tail);
  }
}

template <Index R, bool kPerKey>
HWY_INLINE void update_rows(const Step& step, Index v, const float* u) {
  V spread[R];
#pragma GCC unroll 8
  for (Index r = 0; r < R; ++r) spread[r] = hn::Set(kF32, u[r]);
  const Index whole = step.k_dim / kLanes * kLanes;
  for (Index i = 0; i < whole; i += kLanes) write_rows<R, kPerKey, false>(step, v, i, spread);
  if (whole < step.k_dim) write_rows<R, kPerKey, true>(step, v, whole, spread);
}

// Rows [v, end) of one token, the sums of some rows ahead of the update of those before them; u goes to u[v..].
template <bool kPerKey, bool kDelta>
void pass(const Step& step, Index v, Index end, float* u) {
  constexpr Index R = kStateRows;
  if (v + R <= end) solve_rows<R, kDelta>(step, v, u + v);
  for (; v + R <= end; v += R) {
    if (v + 2 * R <= end) solve_rows<R, kDelta>(step, v + R, u + v + R);
    update_rows<R, kPerKey>(step, v, u + v);
  }
  if (R > 4 && v + 4 <= end) {
    solve_rows<4, kDelta>(step, v, u + v);
    update_rows<4, kPerKey>(step, v, u + v);
    v += 4;
  }
  for (; v < end; ++v) {
    solve_rows<1, kDelta>(step, v, u + v);
    update_rows<1, kPerKey>(step, v, u + v);
  }
}

// Further queries of a head read the state after it is written.
void read_again(const Step& step, const float* query, Index v, Index end, float* outputs) {
  for (; v < end; ++v) {
    const float* row = step.state + v * step.k_dim;
    V sum = hn::Zero(kF32);
    Index i = 0;
    for (; i + kLanes <= step.k_dim; i += kLanes)
      sum = hn::MulAdd(hn::LoadU(kF32, row + i), hn::LoadU(kF32, query + i), sum);
    if (i < step.k_dim) sum = hn::MulAdd(load_state<true>(row + i, step.tail), hn::LoadU(kF32, query + i), sum);
    outputs[v] = hn::GetLane(sums4(sum, sum, sum, sum));
  }
}

// out[i] = d_i row[i].
HWY_INLINE void decay_row(const Step& step, const float* row, Index padded, float* out) {
  for (Index i = 0; i < padded; i += kLanes) {
    const V factor = step.factors == nullptr ? step.factor : hn::LoadU(kF32, step.factors + i);
    hn::StoreU(hn::Mul(factor, hn::LoadU(kF32, row + i)), kF32, out + i);
  }
}

HWY_INLINE float dot(const float* a, const float* b, Index padded) {
  V sum = hn::Zero(kF32);
  for (Index i = 0; i < padded; i += kLanes) sum = hn::MulAdd(hn::LoadU(kF32, a + i), hn::LoadU(kF32, b + i), sum);
  return hn::GetLane(sums4(sum, sum, sum, sum));
}

// Everything of token t that does not depend on the rows of the state.
Step make_step(const gdn::Plan& plan, const gdn::Workspace& w, const RecurrentHead& head, Index t) {
  const GatedDeltaNetShape& shape = plan.args->shape;
  Step step;
  step.k_dim = shape.k_dim;
  step.tail = hn::FirstN(kF32, static_cast<std::size_t>(shape.k_dim % kLanes));
  step.factor = hn::Set(kF32, head.gates->factor[t]);
  if (shape.per_key && head.gates->decays) step.factors = w.factors + t * w.kpad;
  step.key = w.keys + t * w.kpad;
  step.decayed_key = w.decayed_keys + t * w.kpad;
  step.decayed_query = w.decayed_queries + t * w.kpad;
  step.beta = hn::Set(kF32x4, head.gates->beta[t]);
  step.values = w.values + t * w.vpad;
  step.outputs = w.outputs + t * w.vpad;
  step.source = t == 0 ? head.source : head.state;
  step.state = head.state;
  return step;
}

template <bool kPerKey, bool kDelta>
void all_tokens(const gdn::Plan& plan, const gdn::Workspace& w, Index count, const RecurrentHead& head) {
  const Index v_dim = plan.args->shape.v_dim;
  for (Index t = 0; t < count; ++t) {
    const Step step = make_step(plan, w, head, t);
    decay_row(step, step.key, w.kpad, w.decayed_keys + t * w.kpad);
    decay_row(step, w.queries + t * w.kpad, w.kpad, w.decayed_queries + t * w.kpad);
  }
  // Rows that stay in L1 while all tokens pass over them.
  for (Index v = 0; v < v_dim; v += kRowsInCache) {
    const Index end = v + kRowsInCache < v_dim ? v + kRowsInCache : v_dim;
    for (Index t = 0; t < count; ++t) {
      Step step = make_step(plan, w, head, t);
      step.key_query = hn::Set(kF32x4, dot(step.key, w.queries + t * w.kpad, w.kpad));
      pass<kPerKey, kDelta>(step, v, end, w.updates);
      for (Index j = 1; j < plan.queries; ++j) {
        read_again(step, w.queries + (j * w.cap + t) * w.kpad, v, end, step.outputs + j * w.cap * w.vpad);
      }
      if (t >= head.captured) continue;
      std::memcpy(head.delta + t * head.delta_stride + v, w.updates + v,
                  static_cast<std::size_t>(end - v) * sizeof(float));
    }
  }
}

}  // namespace

void read_gates(const gdn::Plan& plan, const gdn::Workspace& workspace, Index begin, Index count, Index head,
                HeadGates& gates) noexcept {
  const GatedDeltaNetArgs& args = *plan.args;
  gates.decays = has_decay(args.rule);
  gates.falling = true;
  read_beta(args, begin, count, head, gates);
  for (Index t = 0; t < kGateCap; ++t) {
    gates.log_decay[t] = 0.0f;
    gates.factor[t] = 1.0f;
  }
  if (!gates.decays) return;
  if (args.shape.per_key) {
    read_key_factors(args, workspace, begin, count, head);
  } else {
    read_head_decay(args, begin, count, head, gates);
  }
}

void recurrent_piece(const gdn::Plan& plan, const gdn::Workspace& workspace, Index count,
                     const RecurrentHead& head) noexcept {
  const bool per_key = plan.args->shape.per_key && head.gates->decays;
  if (has_delta(plan.args->rule)) {
    per_key ? all_tokens<true, true>(plan, workspace, count, head)
            : all_tokens<false, true>(plan, workspace, count, head);
  } else {
    per_key ? all_tokens<true, false>(plan, workspace, count, head)
            : all_tokens<false, false>(plan, workspace, count, head);
  }
}

}  // namespace sluice::SLUICE_LEVEL

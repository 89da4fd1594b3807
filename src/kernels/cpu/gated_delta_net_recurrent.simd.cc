// The token recurrence of GatedDeltaNet, and the gates of both forms.
#include "kernels/cpu/gated_delta_net_pieces.h"
#include "kernels/cpu/gated_delta_net_simd.h"

namespace sluice::SLUICE_LEVEL {
namespace {

constexpr Index kStateRows = 4;     // rows of the state worked on at once
constexpr Index kRowsToL1 = 12;     // how far ahead rows are asked to come to L1
constexpr Index kRowsInCache = 32;  // 16 KiB of a state of 128 channels
constexpr Index kUsualKeys = 128;   // channels of a key in every Qwen hybrid
constexpr Index kUnroll =
    kLanes == 16 ? 8 : 1;    // a whole usual key, where the registers suffice for what that brings along
constexpr Index kLine = 16;  // floats of a cache line

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

// One token of one head. With s the state before it:
//     u = beta (v - s (d k)),   y = s (d q) + u (k . q),   s' = d s + u k.
// Both sums run over the old state, so that it is read once for both. A decay that the keys share factors out of them.
struct Step {
  Index k_dim = 0;
  Mask tail;                       // of the last, incomplete vector of k_dim
  const float* key = nullptr;      // [kpad] k
  const float* sum_key = nullptr;  // [kpad] d k with a decay per key, otherwise k
  const float* query = nullptr;    // [kpad] d q with a decay per key, otherwise q
  const float* factors = nullptr;  // [kpad] d with a decay per key
  V factor;                        // otherwise d
  V4 factor4;                      // the same
  V4 beta;
  V4 key_query;                   // k . q
  const float* values = nullptr;  // [v_dim]
  const float* source = nullptr;  // [v_dim, k_dim] before the token
  float* state = nullptr;         // [v_dim, k_dim] after it; may be source
  float* outputs = nullptr;       // [v_dim]
};

// What comes nearer while some rows are worked on, a line for every line of theirs.
struct Ahead {
  const float* to_l1 = nullptr;
  const float* to_l2 = nullptr;

  HWY_INLINE void fetch(Index at, Index floats) const {
    for (const Index end = at + floats; at < end; at += kLine) {
      __builtin_prefetch(to_l1 + at, 0, 3);
      __builtin_prefetch(to_l2 + at, 0, 2);
    }
  }
};

// What the loops over rows are compiled for. kKeys: k_dim, or 0 for any; R below: rows worked on at once, 1 or 4.
template <bool kPerKeyDecay, bool kDeltaRule, Index kKeys>
struct Form {
  static constexpr bool kPerKey = kPerKeyDecay;
  static constexpr bool kDelta = kDeltaRule;
  static HWY_INLINE Index k_dim(const Step& step) { return kKeys > 0 ? kKeys : step.k_dim; }
};

template <Index R>
HWY_INLINE V4 sums_of(const V (&x)[R]) {
  return sums4(x[0], x[1 % R], x[2 % R], x[3 % R]);
}

template <Index R>
HWY_INLINE void store_rows(V4 x, float* at) {
  if constexpr (R == 1) {
    *at = hn::GetLane(x);
  } else {
    hn::StoreU(x, kF32x4, at);
  }
}

template <class F, Index R, bool kPartial>
HWY_INLINE void sum_rows(const Step& step, const float* source, Index i, V (&retrieved)[R], V (&read)[R]) {
  V key;
  if constexpr (F::kDelta) key = hn::LoadU(kF32, step.sum_key + i);
  const V query = hn::LoadU(kF32, step.query + i);
#pragma GCC unroll 4
  for (Index r = 0; r < R; ++r) {
    const V state = load_state<kPartial>(source + r * F::k_dim(step) + i, step.tail);
    if constexpr (F::kDelta) retrieved[r] = hn::MulAdd(state, key, retrieved[r]);
    read[r] = hn::MulAdd(state, query, read[r]);
  }
}

// Rows [v, v + R): u into `u`, y into the outputs.
template <class F, Index R>
HWY_INLINE void solve_rows(const Step& step, Index v, const Ahead& ahead, float* u) {
  V retrieved[R], read[R];
#pragma GCC unroll 4
  for (Index r = 0; r < R; ++r) retrieved[r] = read[r] = hn::Zero(kF32);
  const Index k_dim = F::k_dim(step);
  const float* source = step.source + v * k_dim;
  const Index whole = k_dim / kLanes * kLanes;
#pragma GCC unroll kUnroll
  for (Index i = 0; i < whole; i += kLanes) {
    ahead.fetch(i * R, R * kLanes);
    sum_rows<F, R, false>(step, source, i, retrieved, read);
  }
  if (whole < k_dim) sum_rows<F, R, true>(step, source, whole, retrieved, read);
  V4 update = R == 1 ? hn::Set(kF32x4, step.values[v]) : hn::LoadU(kF32x4, step.values + v);
  V4 y = sums_of<R>(read);
  if constexpr (!F::kPerKey) y = hn::Mul(step.factor4, y);
  if constexpr (F::kDelta) {
    const V4 old = sums_of<R>(retrieved);
    update = F::kPerKey ? hn::Sub(update, old) : hn::NegMulAdd(step.factor4, old, update);
  }
  update = hn::Mul(step.beta, update);
  store_rows<R>(update, u);
  store_rows<R>(hn::MulAdd(update, step.key_query, y), step.outputs + v);
}

template <class F, Index R, bool kPartial>
HWY_INLINE void write_rows(const Step& step, Index at, Index i, const V (&u)[R]) {
  const V key = hn::LoadU(kF32, step.key + i);
  const V factor = F::kPerKey ? hn::LoadU(kF32, step.factors + i) : step.factor;
#pragma GCC unroll 4
  for (Index r = 0; r < R; ++r) {
    const Index row = at + r * F::k_dim(step) + i;
    const V old = hn::Mul(load_state<kPartial>(step.source + row, step.tail), factor);
    store_state<kPartial>(hn::MulAdd(u[r], key, old), step.state + row, step.tail);
  }
}

template <class F, Index R>
HWY_INLINE void update_rows(const Step& step, Index v, const float* u) {
  V spread[R];
#pragma GCC unroll 4
  for (Index r = 0; r < R; ++r) spread[r] = hn::Set(kF32, u[r]);
  const Index k_dim = F::k_dim(step);
  const Index whole = k_dim / kLanes * kLanes;
#pragma GCC unroll kUnroll
  for (Index i = 0; i < whole; i += kLanes) write_rows<F, R, false>(step, v * k_dim, i, spread);
  if (whole < k_dim) write_rows<F, R, true>(step, v * k_dim, whole, spread);
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
HWY_INLINE void decay_row(const float* factors, const float* row, Index padded, float* out) {
  for (Index i = 0; i < padded; i += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(kF32, factors + i), hn::LoadU(kF32, row + i)), kF32, out + i);
  }
}

HWY_INLINE float dot(const float* a, const float* b, Index padded) {
  V sum = hn::Zero(kF32);
  for (Index i = 0; i < padded; i += kLanes) sum = hn::MulAdd(hn::LoadU(kF32, a + i), hn::LoadU(kF32, b + i), sum);
  return hn::GetLane(sums4(sum, sum, sum, sum));
}

// A piece of one head: all its tokens over some rows of the state that stay in L1, then over the next rows.
template <class F>
class HeadPass {
 public:
  HeadPass(const gdn::Plan& plan, const gdn::Workspace& w, Index count, const RecurrentHead& head)
      : w_(w), head_(head), shape_(plan.args->shape), queries_(plan.queries), count_(count) {
    for (Index t = 0; t < count; ++t) {
      const float* key = w.keys + t * w.kpad;
      const float* query = w.queries + t * w.kpad;
      key_query_[t] = dot(key, query, w.kpad);
      if constexpr (!F::kPerKey) continue;
      decay_row(w.factors + t * w.kpad, key, w.kpad, w.decayed_keys + t * w.kpad);
      decay_row(w.factors + t * w.kpad, query, w.kpad, w.decayed_queries + t * w.kpad);
    }
  }

  void run() const {
    for (Index v = 0; v < shape_.v_dim; v += kRowsInCache) {
      const Index end = v + kRowsInCache < shape_.v_dim ? v + kRowsInCache : shape_.v_dim;
      for (Index t = 0; t < count_; ++t) {
        const Step step = make_step(t);
        pass(step, t, v, end);
        for (Index j = 1; j < queries_; ++j) {
          read_again(step, w_.queries + (j * w_.cap + t) * w_.kpad, v, end, step.outputs + j * w_.cap * w_.vpad);
        }
        if (t >= head_.captured) continue;
        std::memcpy(head_.delta + t * head_.delta_stride + v, w_.updates + v,
                    static_cast<std::size_t>(end - v) * sizeof(float));
      }
    }
  }

 private:
  // Everything of token t that does not depend on the rows of the state.
  Step make_step(Index t) const {
    Step step;
    step.k_dim = shape_.k_dim;
    step.tail = hn::FirstN(kF32, static_cast<std::size_t>(shape_.k_dim % kLanes));
    step.factor = hn::Set(kF32, head_.gates->factor[t]);
    step.factor4 = hn::Set(kF32x4, head_.gates->factor[t]);
    if constexpr (F::kPerKey) step.factors = w_.factors + t * w_.kpad;
    step.key = w_.keys + t * w_.kpad;
    step.sum_key = (F::kPerKey ? w_.decayed_keys : w_.keys) + t * w_.kpad;
    step.query = (F::kPerKey ? w_.decayed_queries : w_.queries) + t * w_.kpad;
    step.beta = hn::Set(kF32x4, head_.gates->beta[t]);
    step.key_query = hn::Set(kF32x4, key_query_[t]);
    step.values = w_.values + t * w_.vpad;
    step.outputs = w_.outputs + t * w_.vpad;
    step.source = t == 0 ? head_.source : head_.state;
    step.state = head_.state;
    return step;
  }

  // Rows [v, end) of token t; u goes to w.updates.
  void pass(const Step& step, Index t, Index v, Index end) const {
    constexpr Index R = kStateRows;
    const Index first = v + kRowsInCache * t / count_, last = v + kRowsInCache * (t + 1) / count_;
    for (; v + R <= end; v += R) {
      solve_rows<F, R>(step, v, ahead_of(step, v, t == 0, first <= v && v < last), w_.updates + v);
      update_rows<F, R>(step, v, w_.updates + v);
    }
    for (; v < end; ++v) {
      const float* row = step.source + v * step.k_dim;
      solve_rows<F, 1>(step, v, {row, row}, w_.updates + v);
      update_rows<F, 1>(step, v, w_.updates + v);
    }
  }

  // Rows soon needed go to L1 before the first token needs them. Those that lie kRowsInCache further on, of this head or
  // the next, go to L2, each token sending for its share, so that memory is at work all the time.
  HWY_INLINE Ahead ahead_of(const Step& step, Index v, bool next, bool far) const {
    const Index k_dim = F::k_dim(step);
    const float* source = head_.source + v * k_dim;
    const Index left = head_.source_end - source;
    Ahead ahead{source, source};  // here already: nothing to do
    if (next && left >= (kRowsToL1 + kStateRows) * k_dim) ahead.to_l1 = source + kRowsToL1 * k_dim;
    if (far && left >= (kRowsInCache + kStateRows) * k_dim) ahead.to_l2 = source + kRowsInCache * k_dim;
    return ahead;
  }

  const gdn::Workspace& w_;
  const RecurrentHead& head_;
  const GatedDeltaNetShape& shape_;
  Index queries_;
  Index count_;
  float key_query_[kGatedDeltaNetChunk];
};

}  // namespace

void read_gates(const GatedDeltaNetArgs& args, Index begin, Index count, Index head, HeadGates& gates) noexcept {
  gates.decays = has_decay(args.rule);
  gates.falling = true;
  read_beta(args, begin, count, head, gates);
  for (Index t = 0; t < kGateCap; ++t) {
    gates.log_decay[t] = 0.0f;
    gates.factor[t] = 1.0f;
  }
  if (gates.decays && !args.shape.per_key) read_head_decay(args, begin, count, head, gates);
}

void read_key_factors(const GatedDeltaNetArgs& args, const gdn::Workspace& w, Index begin, Index count,
                      Index head) noexcept {
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

void fetch_first_rows(const GatedDeltaNetShape& shape, const float* state) noexcept {
  const Index rows = shape.v_dim < kRowsInCache ? shape.v_dim : kRowsInCache;
  for (Index at = 0; at < rows * shape.k_dim; at += kLine) __builtin_prefetch(state + at, 0, 2);
}

void recurrent_piece(const gdn::Plan& plan, const gdn::Workspace& workspace, Index count,
                     const RecurrentHead& head) noexcept {
  const GatedDeltaNetShape& shape = plan.args->shape;
  const auto run = [&]<class F>(F) { HeadPass<F>(plan, workspace, count, head).run(); };
  const bool delta = has_delta(plan.args->rule);
  if (shape.per_key && head.gates->decays) {
    delta ? run(Form<true, true, 0>()) : run(Form<true, false, 0>());
  } else if (delta && shape.k_dim == kUsualKeys) {
    run(Form<false, true, kUsualKeys>());
  } else {
    delta ? run(Form<false, true, 0>()) : run(Form<false, false, 0>());
  }
}

}  // namespace sluice::SLUICE_LEVEL

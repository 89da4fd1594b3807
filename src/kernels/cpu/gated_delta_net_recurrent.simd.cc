// The token recurrence of GatedDeltaNet: gates, and one pass over the state per token.
#include "kernels/cpu/gated_delta_net_pieces.h"
#include "kernels/cpu/gated_delta_net_simd.h"

namespace sluice::SLUICE_LEVEL {
namespace {

constexpr Index kStateRows = kLanes == 16 ? 8 : 4;  // rows of the state in flight: as many sums as registers allow

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

// One token as some rows of the state meet it.
struct Step {
  Index k_dim = 0;
  const float* key = nullptr;      // [kpad]
  const float* query = nullptr;    // [kpad]
  const float* factors = nullptr;  // per key: [kpad]
  V factor;
  Mask tail;                      // of the last, incomplete vector of k_dim
  const float* source = nullptr;  // [rows, k_dim] before the token
  float* state = nullptr;         // [rows, k_dim] after it; may be source
};

template <bool kPerKey>
HWY_INLINE V decay_at(const Step& step, Index i) {
  if constexpr (kPerKey) return hn::LoadU(kF32, step.factors + i);
  return step.factor;
}

// sums[r] += (decayed state row r) . key over kLanes channels from i.
template <Index R, bool kPerKey, bool kPartial>
HWY_INLINE void retrieve(const Step& step, Index i, V (&sums)[R]) {
  const V key = hn::LoadU(kF32, step.key + i);
  const V factor = decay_at<kPerKey>(step, i);
#pragma GCC unroll 8
  for (Index r = 0; r < R; ++r) {
    const V state = hn::Mul(load_state<kPartial>(step.source + r * step.k_dim + i, step.tail), factor);
    sums[r] = hn::MulAdd(state, key, sums[r]);
  }
}

// state = source * decay + u key; sums[r] += (new state row r) . query.
template <Index R, bool kPerKey, bool kPartial>
HWY_INLINE void write(const Step& step, Index i, const float* u, V (&sums)[R]) {
  const V key = hn::LoadU(kF32, step.key + i);
  const V query = hn::LoadU(kF32, step.query + i);
  const V factor = decay_at<kPerKey>(step, i);
#pragma GCC unroll 8
  for (Index r = 0; r < R; ++r) {
    const V old = hn::Mul(load_state<kPartial>(step.source + r * step.k_dim + i, step.tail), factor);
    const V next = hn::MulAdd(hn::Set(kF32, u[r]), key, old);
    store_state<kPartial>(next, step.state + r * step.k_dim + i, step.tail);
    sums[r] = hn::MulAdd(next, query, sums[r]);
  }
}

template <Index R>
HWY_INLINE void reduce(const V (&sums)[R], float* out) {
  const hn::Full128<float> d4;
  if constexpr (R == 1) {
    out[0] = hn::GetLane(sums4(sums[0], sums[0], sums[0], sums[0]));
  } else {
#pragma GCC unroll 2
    for (Index r = 0; r < R; r += 4) hn::StoreU(sums4(sums[r], sums[r + 1], sums[r + 2], sums[r + 3]), d4, out + r);
  }
}

// u = beta * (v - S k) for R rows of the state; `values` are theirs.
template <Index R, bool kPerKey>
HWY_INLINE void solve(const Step& step, bool delta_rule, float beta, const float* values, float* u) {
  alignas(64) float retrieved[R] = {};
  if (delta_rule) {
    V sums[R];
    for (V& sum : sums) sum = hn::Zero(kF32);
    const Index whole = step.k_dim / kLanes * kLanes;
    for (Index i = 0; i < whole; i += kLanes) retrieve<R, kPerKey, false>(step, i, sums);
    if (whole < step.k_dim) retrieve<R, kPerKey, true>(step, whole, sums);
    reduce<R>(sums, retrieved);
  }
  for (Index r = 0; r < R; ++r) u[r] = beta * (values[r] - retrieved[r]);
}

// The update, and the first query's read-out of the rows on the way.
template <Index R, bool kPerKey>
HWY_INLINE void update(const Step& step, const float* u, float* output) {
  V sums[R];
  for (V& sum : sums) sum = hn::Zero(kF32);
  const Index whole = step.k_dim / kLanes * kLanes;
  for (Index i = 0; i < whole; i += kLanes) write<R, kPerKey, false>(step, i, u, sums);
  if (whole < step.k_dim) write<R, kPerKey, true>(step, whole, u, sums);
  reduce<R>(sums, output);
}

// Further queries of a head read the state after it is written.
template <Index R>
void read_again(const Step& step, const float* query, float* output) {
  for (Index r = 0; r < R; ++r) {
    const float* row = step.state + r * step.k_dim;
    V sum = hn::Zero(kF32);
    Index i = 0;
    for (; i + kLanes <= step.k_dim; i += kLanes)
      sum = hn::MulAdd(hn::LoadU(kF32, row + i), hn::LoadU(kF32, query + i), sum);
    if (i < step.k_dim) sum = hn::MulAdd(load_state<true>(row + i, step.tail), hn::LoadU(kF32, query + i), sum);
    output[r] = hn::GetLane(sums4(sum, sum, sum, sum));
  }
}

struct Rows {
  const gdn::Workspace* workspace = nullptr;
  Index k_dim = 0;
  Index queries = 1;
  bool delta_rule = true;
};

template <Index R, bool kPerKey>
void state_rows(const Rows& rows, Index count, const RecurrentHead& head, Index v) {
  const gdn::Workspace& w = *rows.workspace;
  Step step;
  step.k_dim = rows.k_dim;
  step.tail = hn::FirstN(kF32, static_cast<std::size_t>(rows.k_dim % kLanes));
  step.source = head.source + v * rows.k_dim;
  step.state = head.state + v * rows.k_dim;
  for (Index t = 0; t < count; ++t) {
    step.key = w.keys + t * w.kpad;
    step.query = w.queries + t * w.kpad;
    if constexpr (kPerKey) step.factors = w.factors + t * w.kpad;
    step.factor = hn::Set(kF32, head.gates->factor[t]);
    alignas(64) float u[R];
    solve<R, kPerKey>(step, rows.delta_rule, head.gates->beta[t], w.values + t * w.vpad + v, u);
    float* output = w.outputs + t * w.vpad + v;
    update<R, kPerKey>(step, u, output);
    step.source = step.state;
    for (Index j = 1; j < rows.queries; ++j)
      read_again<R>(step, step.query + j * w.cap * w.kpad, output + j * w.cap * w.vpad);
    if (t < head.captured) std::memcpy(head.delta + t * head.delta_stride + v, u, sizeof u);
  }
}

template <bool kPerKey>
void all_rows(const Rows& rows, Index count, const RecurrentHead& head, Index v_dim) {
  Index v = 0;
  for (; v + kStateRows <= v_dim; v += kStateRows) state_rows<kStateRows, kPerKey>(rows, count, head, v);
  if (kStateRows > 4 && v + 4 <= v_dim) state_rows<4, kPerKey>(rows, count, head, v), v += 4;
  for (; v < v_dim; ++v) state_rows<1, kPerKey>(rows, count, head, v);
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
  const GatedDeltaNetArgs& args = *plan.args;
  const Rows rows{&workspace, args.shape.k_dim, plan.queries, has_delta(args.rule)};
  if (args.shape.per_key && has_decay(args.rule)) {
    all_rows<true>(rows, count, head, args.shape.v_dim);
  } else {
    all_rows<false>(rows, count, head, args.shape.v_dim);
  }
}

}  // namespace sluice::SLUICE_LEVEL

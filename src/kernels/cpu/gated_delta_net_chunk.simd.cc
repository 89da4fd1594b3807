// The chunked (WY) form of GatedDeltaNet (Yang et al., "Parallelizing Linear Transformers with the Delta Rule", 2024,
// section 3.2, with the decay of "Gated Delta Networks", eq. 17-19), written with decay differences only:
//     G_t  = g_1 + ... + g_t in f64, D_ij = exp(G_i - G_j) for j <= i
//     u_i  = beta_i (v_i - exp(G_i) S k_i - sum_{j<i} D_ij (k_i . k_j) u_j)       forward substitution
//     y_i  = exp(G_i) S q_i + sum_{j<=i} D_ij (q_i . k_j) u_j
//     S'   = exp(G_n) S + sum_j exp(G_n - G_j) u_j k_j^T
// Tokens are the rows of register blocks, value columns their vectors; the state lies K-major, one panel of kColumns
// value columns after another, so that a panel stays in L1 while a chunk passes over it.
#include "kernels/cpu/gated_delta_net_pieces.h"
#include "kernels/cpu/gated_delta_net_simd.h"

namespace sluice::SLUICE_LEVEL {
namespace {

constexpr Index kStride = gdn::kChunkStride;
constexpr Index kWide =
    kLanes == 16 ? 8 : 6;  // rows of a register block: kWide x kVectors sums and their operands fit the registers

template <Index M>
using Block = V[M][kVectors];

template <Index M>
struct Height {
  static constexpr Index value = M;
};

// Calls body(Height<M>, first row) for register blocks that cover `rows` rows and at most 3 more.
template <typename Body>
HWY_INLINE void for_blocks(Index rows, const Body& body) {
  Index r = 0;
  while (r < rows) {
    const Index left = rows - r;
    if (left > 4 && !(kWide == 6 && left == 8)) {  // 8 = 4 + 4 rather than 6 + 4
      body(Height<kWide>(), r);
      r += kWide;
    } else {
      body(Height<4>(), r);
      r += 4;
    }
  }
}

template <Index M>
HWY_INLINE void clear(Block<M>& sums) {
#pragma GCC unroll 8
  for (Index m = 0; m < M; ++m) sums[m][0] = sums[m][1] = hn::Zero(kF32);
}

// sums[m] += sum_x a[x * a_stride + m] * b[x * b_stride ...], the one product everything here is made of.
template <Index M>
HWY_INLINE void accumulate(Block<M>& sums, const float* HWY_RESTRICT a, Index a_stride, const float* HWY_RESTRICT b,
                           Index b_stride, Index depth) {
  for (Index x = 0; x < depth; ++x) {
    const V b0 = hn::LoadU(kF32, b);
    const V b1 = hn::LoadU(kF32, b + kLanes);
#pragma GCC unroll 8
    for (Index m = 0; m < M; ++m) {
      const V scalar = hn::Set(kF32, a[m]);
      sums[m][0] = hn::MulAdd(scalar, b0, sums[m][0]);
      sums[m][1] = hn::MulAdd(scalar, b1, sums[m][1]);
    }
    a += a_stride;
    b += b_stride;
  }
}

template <Index M>
HWY_INLINE void store_block(const Block<M>& sums, float* to, Index stride) {
#pragma GCC unroll 8
  for (Index m = 0; m < M; ++m) {
    hn::StoreU(sums[m][0], kF32, to + m * stride);
    hn::StoreU(sums[m][1], kF32, to + m * stride + kLanes);
  }
}

// out[j, i] = left_j . right_i for i >= j (and whatever the blocks cover beside it); both [k_dim, kStride].
void token_products(const float* left, const float* right, Index k_dim, Index count, float* out) {
  for_blocks(count, [&](auto height, Index j) {
    constexpr Index M = decltype(height)::value;
    for (Index i = j / kColumns * kColumns; i < count; i += kColumns) {
      Block<M> sums;
      clear<M>(sums);
      accumulate<M>(sums, left + j, kStride, right + i, kStride, k_dim);
      store_block<M>(sums, out + j * kStride + i, kStride);
    }
  });
}

// Decays of a chunk: G in two floats (its sum in f64), and what follows from it.
struct ChunkDecay {
  alignas(64) float high[kGateCap];
  alignas(64) float low[kGateCap];
  alignas(64) float from_start[kGateCap];  // exp(G_i)
  alignas(64) float to_end[kGateCap];      // exp(G_n - G_j)
  float whole = 1;                         // exp(G_n)
};

void sum_decay(const HeadGates& gates, Index count, ChunkDecay& decay) {
  double sums[kGateCap];
  double sum = 0;
  for (Index t = 0; t < kGateCap; ++t) {
    sum += static_cast<double>(gates.log_decay[t]);  // zero beyond the chunk
    sums[t] = sum;
    decay.high[t] = static_cast<float>(sum);
    decay.low[t] = static_cast<float>(sum - static_cast<double>(decay.high[t]));
  }
  for (Index t = 0; t < kGateCap; ++t) decay.to_end[t] = static_cast<float>(sum - sums[t]);
  for (Index t = 0; t < kGateCap; t += kLanes) {
    hn::Store(exp_of_nonpositive(hn::Load(kF32, decay.high + t)), kF32, decay.from_start + t);
    hn::Store(exp_of_nonpositive(hn::Load(kF32, decay.to_end + t)), kF32, decay.to_end + t);
  }
  decay.whole = decay.from_start[count - 1];
}

// D_ij for kLanes tokens i from `i`.
HWY_INLINE V decay_between(const ChunkDecay& decay, Index j, Index i) {
  const V high = hn::Sub(hn::Load(kF32, decay.high + i), hn::Set(kF32, decay.high[j]));
  const V low = hn::Sub(hn::Load(kF32, decay.low + i), hn::Set(kF32, decay.low[j]));
  return exp_of_nonpositive(hn::Min(hn::Add(high, low), hn::Zero(kF32)));  // i < j is never read, but may not overflow
}

void apply_decay(const gdn::Plan& plan, const gdn::Workspace& w, Index count, const HeadGates& gates,
                 const ChunkDecay& decay) {
  const bool delta_rule = has_delta(plan.args->rule);
  for (Index j = 0; j < count; ++j) {
    for (Index i = j / kLanes * kLanes; i < count; i += kLanes) {
      const V between = gates.decays ? decay_between(decay, j, i) : hn::Set(kF32, 1.0f);
      const Index at = j * kStride + i;
      if (delta_rule) hn::StoreU(hn::Neg(hn::Mul(between, hn::LoadU(kF32, w.key_key + at))), kF32, w.solve + at);
      for (Index q = 0; q < plan.queries; ++q) {
        const Index shift = q * w.cap * kStride + at;
        hn::StoreU(hn::Mul(between, hn::LoadU(kF32, w.query_key + shift)), kF32, w.read + shift);
      }
    }
  }
}

struct Chunk {
  const gdn::Workspace* workspace = nullptr;
  const HeadGates* gates = nullptr;
  const ChunkDecay* decay = nullptr;
  Index k_dim = 0;
  Index count = 0;
  Index queries = 1;
  bool delta_rule = true;
};

// u of the tokens [r, r + M) for one panel, and its decayed copy.
template <Index M>
HWY_INLINE void solve_rows(const Chunk& chunk, Index r, const float* panel, const float* values) {
  const gdn::Workspace& w = *chunk.workspace;
  Block<M> u;
  clear<M>(u);
  if (chunk.delta_rule) accumulate<M>(u, w.keys_t + r, kStride, panel, kColumns, chunk.k_dim);
#pragma GCC unroll 8
  for (Index m = 0; m < M; ++m) {
    const V from_start = hn::Set(kF32, chunk.decay->from_start[r + m]);
    u[m][0] = hn::NegMulAdd(from_start, u[m][0], hn::LoadU(kF32, values + (r + m) * w.vpad));
    u[m][1] = hn::NegMulAdd(from_start, u[m][1], hn::LoadU(kF32, values + (r + m) * w.vpad + kLanes));
  }
  if (chunk.delta_rule) accumulate<M>(u, w.solve + r, kStride, w.update, kColumns, r);
#pragma GCC unroll 8
  for (Index m = 0; m < M; ++m) {
    const V beta = hn::Set(kF32, chunk.gates->beta[r + m]);
    u[m][0] = hn::Mul(beta, u[m][0]);
    u[m][1] = hn::Mul(beta, u[m][1]);
    if (!chunk.delta_rule) continue;
    const float* column = w.solve + (r + m) * kStride + r;
#pragma GCC unroll 8
    for (Index later = m + 1; later < M; ++later) {
      u[later][0] = hn::MulAdd(hn::Set(kF32, column[later]), u[m][0], u[later][0]);
      u[later][1] = hn::MulAdd(hn::Set(kF32, column[later]), u[m][1], u[later][1]);
    }
  }
  store_block<M>(u, w.update + r * kColumns, kColumns);
#pragma GCC unroll 8
  for (Index m = 0; m < M; ++m) {
    const V to_end = hn::Set(kF32, chunk.decay->to_end[r + m]);
    hn::StoreU(hn::Mul(to_end, u[m][0]), kF32, w.update_decayed + (r + m) * kColumns);
    hn::StoreU(hn::Mul(to_end, u[m][1]), kF32, w.update_decayed + (r + m) * kColumns + kLanes);
  }
}

// y of the tokens [r, r + M) for one panel; u of the tokens before r + M is known.
template <Index M>
HWY_INLINE void read_rows(const Chunk& chunk, Index query, Index r, const float* panel, float* outputs) {
  const gdn::Workspace& w = *chunk.workspace;
  const float* read = w.read + query * w.cap * kStride;
  Block<M> y;
  clear<M>(y);
  accumulate<M>(y, w.queries_t + query * chunk.k_dim * kStride + r, kStride, panel, kColumns, chunk.k_dim);
#pragma GCC unroll 8
  for (Index m = 0; m < M; ++m) {
    const V from_start = hn::Set(kF32, chunk.decay->from_start[r + m]);
    y[m][0] = hn::Mul(from_start, y[m][0]);
    y[m][1] = hn::Mul(from_start, y[m][1]);
  }
  accumulate<M>(y, read + r, kStride, w.update, kColumns, r);
#pragma GCC unroll 8
  for (Index m = 0; m < M; ++m) {
    const V u0 = hn::LoadU(kF32, w.update + (r + m) * kColumns);
    const V u1 = hn::LoadU(kF32, w.update + (r + m) * kColumns + kLanes);
    const float* column = read + (r + m) * kStride + r;
#pragma GCC unroll 8
    for (Index later = m; later < M; ++later) {
      y[later][0] = hn::MulAdd(hn::Set(kF32, column[later]), u0, y[later][0]);
      y[later][1] = hn::MulAdd(hn::Set(kF32, column[later]), u1, y[later][1]);
    }
  }
  store_block<M>(y, outputs + r * w.vpad, w.vpad);
}

// S' for the channels [i, i + M) of one panel.
template <Index M>
HWY_INLINE void advance_rows(const Chunk& chunk, Index i, float* panel) {
  const gdn::Workspace& w = *chunk.workspace;
  const V whole = hn::Set(kF32, chunk.decay->whole);
  float* at = panel + i * kColumns;
  Block<M> state;
#pragma GCC unroll 8
  for (Index m = 0; m < M; ++m) {
    state[m][0] = hn::Mul(whole, hn::LoadU(kF32, at + m * kColumns));
    state[m][1] = hn::Mul(whole, hn::LoadU(kF32, at + m * kColumns + kLanes));
  }
  accumulate<M>(state, w.keys + i, w.kpad, w.update_decayed, kColumns, chunk.count);
  store_block<M>(state, at, kColumns);
}

void chunk_panel(const Chunk& chunk, float* panel, Index column) {
  const gdn::Workspace& w = *chunk.workspace;
  for_blocks(chunk.count, [&](auto height, Index r) {
    constexpr Index M = decltype(height)::value;
    solve_rows<M>(chunk, r, panel, w.values + column);
    for (Index q = 0; q < chunk.queries; ++q) read_rows<M>(chunk, q, r, panel, w.outputs + q * w.cap * w.vpad + column);
  });
  for_blocks(chunk.k_dim, [&](auto height, Index i) { advance_rows<decltype(height)::value>(chunk, i, panel); });
}

Index panel_stride(Index k_dim) { return ((k_dim + 3) / 4 * 4 + gdn::kRowPad) * kColumns; }

}  // namespace

void prepare_chunk(const gdn::Plan& plan, const gdn::Workspace& w, Index count) noexcept {
  const Index k_dim = plan.args->shape.k_dim;
  transpose(w.keys, w.kpad, w.cap, k_dim, w.keys_t, kStride);
  if (has_delta(plan.args->rule)) token_products(w.keys_t, w.keys_t, k_dim, count, w.key_key);
  for (Index q = 0; q < plan.queries; ++q) {
    float* queries_t = w.queries_t + q * k_dim * kStride;
    transpose(w.queries + q * w.cap * w.kpad, w.kpad, w.cap, k_dim, queries_t, kStride);
    token_products(w.keys_t, queries_t, k_dim, count, w.query_key + q * w.cap * kStride);
  }
}

void chunk_piece(const gdn::Plan& plan, const gdn::Workspace& w, Index count, const HeadGates& gates,
                 float* panel) noexcept {
  ChunkDecay decay;
  sum_decay(gates, count, decay);
  apply_decay(plan, w, count, gates, decay);
  const Index k_dim = plan.args->shape.k_dim;
  const Chunk chunk{&w, &gates, &decay, k_dim, count, plan.queries, has_delta(plan.args->rule)};
  for (Index column = 0; column < plan.args->shape.v_dim; column += kColumns) {
    chunk_panel(chunk, panel + column / kColumns * panel_stride(k_dim), column);
  }
}

void state_to_panel(const GatedDeltaNetShape& shape, const float* state, float* panel) noexcept {
  const Index stride = panel_stride(shape.k_dim);
  for (Index column = 0; column < shape.v_dim; column += kColumns, panel += stride) {
    const Index columns = shape.v_dim - column < kColumns ? shape.v_dim - column : kColumns;
    const Index filled = state == nullptr || columns < kColumns ? 0 : shape.k_dim * kColumns;
    for (Index i = filled; i < stride; i += kLanes) hn::StoreU(hn::Zero(kF32), kF32, panel + i);
    if (state != nullptr) transpose(state + column * shape.k_dim, shape.k_dim, columns, shape.k_dim, panel, kColumns);
  }
}

void panel_to_state(const GatedDeltaNetShape& shape, const float* panel, float* state) noexcept {
  const Index stride = panel_stride(shape.k_dim);
  for (Index column = 0; column < shape.v_dim; column += kColumns, panel += stride) {
    const Index columns = shape.v_dim - column < kColumns ? shape.v_dim - column : kColumns;
    transpose(panel, kColumns, shape.k_dim, columns, state + column * shape.k_dim, shape.k_dim);
  }
}

}  // namespace sluice::SLUICE_LEVEL

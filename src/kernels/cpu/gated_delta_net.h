// GatedDeltaNet (com.microsoft, version 1): linear attention over packed rows with a carried f32 state per value head.
//
// A row is one request's segment [cu_seqlens[b], cu_seqlens[b + 1]) of the packed tokens. Per row and value head h,
// with the state S [v_dim, k_dim] ("V-major"), for every token in order (Yang et al., "Gated Delta Networks", 2024, eq.
// 10):
//     q, k = q / sqrt(sum q^2 + e), k / sqrt(sum k^2 + e)              with qk_l2_norm, e = qk_l2_epsilon
//     g    = decay                                                     GateActivation::none
//          | -exp(a_log) * softplus(decay + dt_bias)                   GateActivation::softplus
//          | gate_lower_bound * sigmoid(exp(a_log) * (decay + dt_bias))  GateActivation::sigmoid
//     S    = S * exp(max(g, -200))                                     rules gated, gated_delta; per key column with
//     per_key u    = beta * (v - S k)                                          without S k for the rules linear and
//     gated S    = S + u k^T y    = scale * S q
// beta is 1 without a beta input. Value head h reads key head h / (v_heads / k_heads) and, while q_heads <= v_heads,
// query head h / (v_heads / q_heads); with q_heads > v_heads the q_heads / v_heads consecutive query heads all read
// state h.
//
// What a result depends on. A row's bits depend on that row alone: never on the other rows, the number of threads or
// the executor. Within a row, pieces of kGatedDeltaNetChunk tokens, counted from the row's start in this call, are each
// computed either in the chunked (WY) form or by the token recurrence, decided by that piece alone:
//   recurrence  when the decay is per key channel; when the piece has fewer than kGatedDeltaNetMinChunk tokens; when
//   some
//               g of the piece is positive or not a number; for the delta rules without qk_l2_norm, when some key of
//               the piece is longer than one (the chunked form is stable for unit keys only); in a row that captures.
//   chunked     otherwise.
// So cutting a row into several calls at multiples of kGatedDeltaNetChunk changes no bit. Bits differ between levels. The
// SIMD levels take subnormal f32 numbers for zero.
// The operator's chunk_size attribute is a tuning hint without meaning for the result; this implementation needs no
// hint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/executor.h"
#include "kernels/cpu/level.h"

namespace sluice {

enum class UpdateRule { linear, gated, delta, gated_delta };
enum class GateActivation { none, softplus, sigmoid };  // "softplus" is also spelled qwen, "sigmoid" kda
enum class BetaActivation { none, sigmoid, twice_sigmoid };

constexpr bool has_decay(UpdateRule rule) noexcept {
  return rule == UpdateRule::gated || rule == UpdateRule::gated_delta;
}
constexpr bool has_delta(UpdateRule rule) noexcept {
  return rule == UpdateRule::delta || rule == UpdateRule::gated_delta;
}

inline constexpr std::int64_t kGatedDeltaNetChunk = 64;     // tokens
inline constexpr std::int64_t kGatedDeltaNetMinChunk = 12;  // tokens

struct GatedDeltaNetShape {
  std::int64_t tokens = 0;  // of all rows together; 0 is legal
  std::int64_t rows = 0;    // requests; 0 is legal
  std::int64_t q_heads = 0;
  std::int64_t k_heads = 0;
  std::int64_t v_heads = 0;  // a multiple of k_heads; a multiple of q_heads or a divisor of it
  std::int64_t k_dim = 0;
  std::int64_t v_dim = 0;
  std::int64_t capacity = 0;  // capture slots a row, 0 = no capsule
  bool per_key = false;       // decay per key channel

  std::int64_t output_heads() const noexcept { return q_heads > v_heads ? q_heads : v_heads; }
  std::int64_t decay_width() const noexcept { return per_key ? v_heads * k_dim : v_heads; }
  // Floats of a row's capsule: decay [capacity, decay_width], key [capacity, k_heads, k_dim], delta [capacity, v_heads,
  // v_dim].
  std::int64_t capsule_width() const noexcept { return capacity * (decay_width() + k_heads * k_dim + v_heads * v_dim); }
};

// Element (token, head, i) of [tokens, heads, dim] lies at data + token * token_stride + head * head_stride + i, in
// elements. Query, key and value may thus be slices of one packed tensor. A head_stride of 0 shares one head's values.
struct HeadsView {
  const void* data = nullptr;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
};

struct GatedDeltaNetArgs {
  GatedDeltaNetShape shape;
  UpdateRule rule = UpdateRule::gated_delta;
  GateActivation gate_activation = GateActivation::none;
  BetaActivation beta_activation = BetaActivation::none;
  float gate_lower_bound = -5.0f;
  float scale = 0.0f;  // 0 = 1 / sqrt(k_dim)
  bool qk_l2_norm = false;
  float qk_l2_epsilon = 1e-12f;  // added to the sum of squares

  DType dtype = DType::f32;  // of query, key, value and output: f32, f16 or bf16
  HeadsView query;           // [tokens, q_heads, k_dim] dtype
  HeadsView key;             // [tokens, k_heads, k_dim] dtype
  HeadsView value;           // [tokens, v_heads, v_dim] dtype
  DType gate_dtype = DType::f32;
  HeadsView decay;  // [tokens, v_heads, 1 or k_dim] gate_dtype; read only by rules with decay
  HeadsView beta;   // [tokens, v_heads, 1] gate_dtype; data null = 1
  // With a gate activation: [v_heads], or [v_heads, k_dim] when the flag beside it says so (only with per_key).
  const float* a_log = nullptr;
  const float* dt_bias = nullptr;
  bool a_log_per_key = false;
  bool dt_bias_per_key = false;

  // [rows + 1], not decreasing, from 0 to tokens: the caller has checked it. Null = rows of tokens / rows tokens each.
  const std::int32_t* cu_seqlens = nullptr;
  const float* initial_state = nullptr;  // [rows, v_heads, v_dim, k_dim] f32; null = zeros
  float* final_state = nullptr;          // the same shape; null = not wanted; may be initial_state itself
  void* output = nullptr;                // [tokens, output_heads, v_dim] dtype, dense

  // Capture (capacity > 0): row b describes its first clamp(capture_count[b], 0, min(capacity, length)) tokens;
  // replaying S = S * decay, S = fma(delta, key, S) per slot from the old state gives the state after them bit for bit.
  // Slots beyond are zero; the whole capsule is zero, and the counts are not read, when capture is off.
  bool capture_active = true;
  const std::int32_t* capture_count = nullptr;  // [rows]
  float* capsule = nullptr;                     // [rows, capsule_width] f32; null = not wanted
};

// Bytes `gated_delta_net` needs as scratch, at any alignment; SIZE_MAX / 2 for shapes no memory holds.
std::size_t gated_delta_net_scratch_bytes(Level level, const GatedDeltaNetShape& shape) noexcept;

// Outputs may not overlap inputs, but for final_state == initial_state. Pointers may be unaligned for their element.
void gated_delta_net(Level level, const GatedDeltaNetArgs& args, std::span<std::byte> scratch,
                     Executor& executor) noexcept;

}  // namespace sluice

// VarlenLinearAttention: the packed recurrence GatedDeltaNet is compared with. Its maths is GatedDeltaNet's token by
// token (gated_delta_net.h), without q/k normalisation inside and with its own spelling of gates and heads.
#pragma once

#include "kernels/cpu/gated_delta_net.h"

namespace sluice {

struct VarlenLinearAttentionArgs {
  std::int64_t tokens = 0;
  std::int64_t rows = 0;
  std::int64_t q_heads = 0;  // a multiple of v_heads, or a divisor of it
  std::int64_t k_heads = 0;  // a divisor of v_heads
  std::int64_t v_heads = 0;
  std::int64_t k_dim = 0;
  std::int64_t v_dim = 0;

  UpdateRule rule = UpdateRule::gated_delta;
  float scale = 0.0f;           // 0 = 1 / sqrt(k_dim)
  bool softplus_decay = false;  // g = -exp(a_log) * softplus(decay + dt_bias) instead of g = decay
  BetaActivation beta_activation = BetaActivation::none;

  DType dtype = DType::f32;                  // of query, key, value, output: f32, f16, bf16
  const void* query = nullptr;               // [tokens, q_heads, k_dim] dtype
  const void* key = nullptr;                 // [tokens, k_heads, k_dim] dtype
  const void* value = nullptr;               // [tokens, v_heads, v_dim] dtype
  const std::int32_t* cu_seqlens = nullptr;  // [rows + 1], checked by the caller
  const float* initial_state = nullptr;      // [rows, v_heads, v_dim, k_dim] f32

  DType gate_dtype = DType::f32;
  const void* decay =
      nullptr;  // [tokens, v_heads] or, with per_key_decay, [tokens, v_heads, k_dim]; rules with decay only
  bool per_key_decay = false;
  const void* beta = nullptr;  // [tokens, v_heads] or, with shared_beta, [tokens, 1]; the delta rules only
  bool shared_beta = false;
  const float* a_log = nullptr;    // [v_heads] or, with per_key_gate, [v_heads, k_dim]
  const float* dt_bias = nullptr;  // like a_log
  bool per_key_gate = false;       // only with per_key_decay

  void* output = nullptr;        // [tokens, max(q_heads, v_heads), v_dim] dtype
  float* final_state = nullptr;  // like initial_state, and possibly the same buffer
};

std::size_t varlen_linear_attention_scratch_bytes(Level level, const VarlenLinearAttentionArgs& args) noexcept;

void varlen_linear_attention(Level level, const VarlenLinearAttentionArgs& args, std::span<std::byte> scratch,
                             Executor& executor) noexcept;

}  // namespace sluice

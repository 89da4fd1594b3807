// com.microsoft LinearAttentionGate: decay = decay_scale[h] * softplus(a + dt_bias[h]), beta = sigmoid(b).
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/executor.h"
#include "kernels/cpu/level.h"

namespace sluice {

struct LinearAttentionGateArgs {
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  DType type = DType::f32;  // f32, f16 or bf16: a, b, decay, beta; f32 inside, one rounding at the end

  const void* a = nullptr;             // [tokens, heads]
  const float* dt_bias = nullptr;      // [heads] f32 whatever `type` is
  const float* decay_scale = nullptr;  // [heads] f32, -exp(A_log)
  const void* b = nullptr;             // [tokens, heads], or null together with beta

  void* decay = nullptr;  // [tokens, heads]
  void* beta = nullptr;   // [tokens, heads] or null
};

void linear_attention_gate(Level level, const LinearAttentionGateArgs& args, Executor& executor) noexcept;

}  // namespace sluice

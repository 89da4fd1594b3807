// com.microsoft GatedRMSNorm: y = x / sqrt(mean(x^2) + epsilon) * scale * act(gate) over contiguous groups of one head.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/executor.h"
#include "kernels/cpu/level.h"

namespace sluice {

enum class NormGate : std::uint8_t { silu, sigmoid };

struct GatedRmsNormArgs {
  std::int64_t groups = 0;  // tokens * heads
  std::int64_t width = 0;   // elements of a group
  DType type = DType::f32;  // f32, f16 or bf16: every buffer; f32 inside

  const void* input = nullptr;  // [groups, width]
  const void* scale = nullptr;  // [width], as stored (no + 1)
  const void* gate = nullptr;   // [groups, width]
  float epsilon = 1e-5f;
  NormGate activation = NormGate::silu;

  void* output = nullptr;  // [groups, width]; may be input or gate
};

// A group's bits depend on the group alone.
void gated_rms_norm(Level level, const GatedRmsNormArgs& args, Executor& executor) noexcept;

}  // namespace sluice

// com.microsoft GatedAdd: out = x + round(y * gate), one gate a row, two roundings to the type (no fused multiply-add).
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/executor.h"
#include "kernels/cpu/level.h"

namespace sluice {

struct GatedAddArgs {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  DType type = DType::f32;  // f32, f16 or bf16: every buffer

  const void* x = nullptr;     // [rows, width]
  const void* y = nullptr;     // [rows, width]
  const void* gate = nullptr;  // [rows]

  void* output = nullptr;  // [rows, width]; may be x or y
};

void gated_add(Level level, const GatedAddArgs& args, Executor& executor) noexcept;

}  // namespace sluice

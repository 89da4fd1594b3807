// Rotary position embedding with one position a token (com.microsoft RotaryEmbedding) or three (MRotaryEmbedding).
//
// With rotary_dim = 2n, element pair i < n of every head is turned by the table row of its position:
//   (u, v) -> (u cos - v sin, u sin + v cos), (u, v) = elements (i, i + n), or (2i, 2i + 1) when interleaved;
// elements beyond rotary_dim pass through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/executor.h"
#include "kernels/cpu/level.h"

namespace sluice {

// Which of the three position streams (T, H, W) frequency i uses.
enum class MropeLayout : std::uint8_t {
  chunked,      // the first section[0] frequencies T, the next section[1] H, the last section[2] W
  interleaved,  // H where i % 3 == 1 and i < 3 * section[1]; W where i % 3 == 2 and i < 3 * section[2]; else T
};

struct MropeShape {
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;  // even, <= head_dim
  std::int64_t table_rows = 0;
  std::int64_t streams = 1;  // 1 or 3
};

struct MropeArgs {
  MropeShape shape;
  DType type = DType::f32;  // f32, f16 or bf16: input, tables, output; f32 inside

  const void* input = nullptr;              // token t, head h at input + t * token_stride + h * head_stride (elements)
  std::int64_t token_stride = 0;            // [tokens, heads, head_dim]: heads * head_dim and head_dim;
  std::int64_t head_stride = 0;             // [heads, tokens, head_dim]: head_dim and tokens * head_dim
  const std::int64_t* positions = nullptr;  // [streams, tokens], validated
  const void* cos = nullptr;                // [table_rows, rotary_dim / 2]
  const void* sin = nullptr;
  bool interleaved = false;             // pairs (2i, 2i + 1)
  std::int64_t section[3] = {0, 0, 0};  // with three streams: sums to rotary_dim / 2
  MropeLayout layout = MropeLayout::chunked;

  void* output = nullptr;  // strides as the input's; may be the input
};

// The first position outside [0, table_rows), as a flat index into positions, or -1. `positions` holds
// streams * tokens of them.
std::int64_t find_invalid_position(std::span<const std::int64_t> positions, std::int64_t table_rows) noexcept;

void mrope(Level level, const MropeArgs& args, Executor& executor) noexcept;

}  // namespace sluice

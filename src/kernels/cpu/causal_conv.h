// Depthwise causal 1-D convolution over packed, ragged tokens with carried left context
// (com.microsoft VarlenCausalConvWithState; CausalConvWithState with channels last is the same function).
//
// For row b with tokens s .. e-1, local index t and taps j = 0 .. kernel-1 (oldest first):
//   y[t][c] = act(bias[c] + sum_j weight[c][j] * x[t - (kernel-1-j) * dilation][c]), f32 inside, one order of sums;
// local positions before 0 come from initial_state, whose last column is the newest. Without carry-over between rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/executor.h"
#include "kernels/cpu/cu_seqlens.h"
#include "kernels/cpu/level.h"

namespace sluice {

enum class ConvActivation : std::uint8_t { none, silu };

struct CausalConvShape {
  std::int64_t tokens = 0;
  std::int64_t rows = 0;
  std::int64_t channels = 0;
  std::int64_t kernel = 0;            // taps, >= 1
  std::int64_t dilation = 1;          // >= 1
  std::int64_t capture_capacity = 0;  // token slots a row of `capture`

  std::int64_t state_length() const noexcept { return (kernel - 1) * dilation; }
};

struct CausalConvArgs {
  CausalConvShape shape;
  DType type = DType::f32;  // f32, f16 or bf16: every buffer but the integers

  const std::int32_t* cu_seqlens = nullptr;     // [rows + 1], passed validate_cu_seqlens
  const std::int32_t* capture_count = nullptr;  // [rows], any values: clamped to [0, min(capacity, row's tokens)]

  const void* input = nullptr;          // [tokens, channels]
  const void* weight = nullptr;         // [channels, 1, kernel]
  const void* bias = nullptr;           // [channels] or null
  const void* initial_state = nullptr;  // [rows, channels, state_length] or null (zeros); never promoted to f32
  ConvActivation activation = ConvActivation::none;

  void* output = nullptr;  // [tokens, channels]
  void* final_state =
      nullptr;  // [rows, channels, state_length]; may be initial_state itself. An empty row's passes through.
  void* capture =
      nullptr;  // [rows, capture_capacity, channels] raw inputs of a row's first tokens, zeros beyond; or null
};

std::size_t causal_conv_scratch_bytes(const CausalConvShape& shape, DType type) noexcept;

void causal_conv(Level level, const CausalConvArgs& args, std::span<std::byte> scratch, Executor& executor) noexcept;

}  // namespace sluice

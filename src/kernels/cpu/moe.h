// Sparse mixture of gated experts: route, run the chosen experts, add their outputs (operator sluice.MoE).
//
//   p = softmax(router_logits[t]) over all experts, f32; the k largest, ties to the lower expert, are ranks 0..k-1;
//   w_r = p_r, divided by their sum when `normalize`;
//   y[t] = sum over r, in rank order, of w_r * (act(x Wg_r^T) * (x Wu_r^T)) Wd_r^T
//
// Tokens are grouped by expert, so that an expert's weights are read once however many tokens chose it. A token's bits
// depend on that token alone: every product is summed in linear.h's order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/executor.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/weight_view.h"

namespace sluice {

enum class MoeActivation : std::uint8_t { silu, gelu_tanh };

struct MoeShape {
  std::int64_t tokens = 0;        // T; 0 is legal
  std::int64_t hidden = 0;        // H
  std::int64_t intermediate = 0;  // I
  std::int64_t experts = 0;       // E
  std::int64_t k = 0;             // experts a token, 1..E
};

// The matrices of all experts: expert e is dense, row-major, at bytes + e * expert_stride.
struct ExpertWeights {
  const std::byte* bytes = nullptr;
  WeightFormat format = WeightFormat::f32;
  std::int64_t expert_stride = 0;  // bytes
};

// The two halves of gate_up [E, 2I, H], gate rows first.
struct GateUp {
  ExpertWeights gate;
  ExpertWeights up;
};
GateUp split_gate_up(const std::byte* gate_up, WeightFormat format, const MoeShape& shape) noexcept;
// A dense [E, rows, cols].
ExpertWeights dense_experts(const std::byte* bytes, WeightFormat format, std::int64_t rows, std::int64_t cols) noexcept;

struct MoeArgs {
  MoeShape shape;
  const float* x = nullptr;              // [T, H] f32
  const float* router_logits = nullptr;  // [T, E] f32
  ExpertWeights gate;                    // [E, I, H]
  ExpertWeights up;                      // [E, I, H]
  ExpertWeights down;                    // [E, H, I]
  MoeActivation activation = MoeActivation::silu;
  bool normalize = true;
  float* y = nullptr;  // [T, H] f32; may not overlap x
};

// Bytes of scratch (any alignment) that moe() needs for these extents and weight formats. The extents must have been
// checked: no product of theirs overflows.
std::size_t moe_scratch_bytes(Level level, const MoeArgs& args) noexcept;

// NaN logits give NaN outputs for that token, never a crash.
void moe(Level level, const MoeArgs& args, std::span<std::byte> scratch, Executor& executor) noexcept;

}  // namespace sluice

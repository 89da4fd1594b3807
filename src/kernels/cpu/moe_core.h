// The parts of moe.h that are compiled once a level.
#pragma once

#include <cstdint>

#include "kernels/cpu/moe.h"

namespace sluice {

// gate[i] = act(gate[i]) * up[i], rows x cols; an element's bits depend on its two operands alone.
struct GateBlock {
  MoeActivation activation = MoeActivation::silu;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  float* gate = nullptr;      // rows `stride` elements apart
  const float* up = nullptr;  // likewise
  std::int64_t stride = 0;
};

// y = sum over r, in order, of scale[r] * parts[r]
struct MixRow {
  std::int64_t k = 0;
  std::int64_t cols = 0;
  const float* parts = nullptr;        // rows of cols elements
  const std::int32_t* part = nullptr;  // [k] which row of parts
  const float* scale = nullptr;        // [k]
  float* y = nullptr;                  // [cols]
};

// The matrix of expert e.
WeightView expert_matrix(const ExpertWeights& weights, std::int64_t e, std::int64_t rows, std::int64_t cols) noexcept;

// The experts of a token, best first, and their weights: [k] each. `p` [experts] is room to work in.
void moe_route(const MoeArgs& args, std::int64_t token, float* p, std::int32_t* chosen, float* weight) noexcept;

// moe() at the vector levels.
void moe_grouped(Level level, const MoeArgs& args, std::span<std::byte> scratch, Executor& executor) noexcept;

namespace avx2 {
void gate_block(const GateBlock& block) noexcept;
void mix_row(const MixRow& row) noexcept;
}  // namespace avx2

namespace avx512 {
void gate_block(const GateBlock& block) noexcept;
void mix_row(const MixRow& row) noexcept;
}  // namespace avx512

}  // namespace sluice

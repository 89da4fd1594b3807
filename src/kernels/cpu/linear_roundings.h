// For tests: how far a sum in linear.h's order may be from the exact one.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/level.h"
#include "kernels/cpu/weight_view.h"

namespace sluice {

// Roundings that a product of a sum over K passes at most, the bias and the result's own included: the sum is off by at
// most so many times 2^-24 of the sum of magnitudes. A lane takes 512 / 8 steps, then come the tree and the blocks of K.
// In tiles a product passes sixteen steps, the sum of the two halves and what follows: three parts of each of 1024 / 32 steps.
inline double linear_roundings(Level level, WeightFormat format, std::int64_t depth) {
  const bool tiles = level == Level::amx && format == WeightFormat::bf16;  // few outputs round less
  const std::int64_t in_block =
      tiles ? 16 + 1 + 3 * (std::min<std::int64_t>(depth, 1024) / 32 + 1) : std::min<std::int64_t>(depth, 512) / 8 + 5;
  return static_cast<double>(in_block + depth / (tiles ? 1024 : 512) + 2);
}

}  // namespace sluice

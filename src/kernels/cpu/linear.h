// y = x W^T + b with f32 activations and a weight read in place in the format it is stored in.
//
// The order of a sum, the same for every number of rows, thread count and position:
// - avx2 and avx512, and amx for weights that are not bf16 or have fewer than 64 rows: K is cut at multiples of 512; in a block, lane l of 8
//   accumulates x[k] * w[k] of k = l, l + 8, ... by fused multiply-add in ascending k, the last step padded with zeros; the
//   lanes are added as ((l0+l2)+(l1+l3)) + ((l4+l6)+(l5+l7)); the blocks' sums are added in ascending order; the bias is
//   added last. Weights are widened exactly, so that equal values give equal bits whatever the format.
// - amx, bf16 weights of at least 64 rows: each x is cut, exactly, into three bf16: the first eight bits of its significand, the next eight,
//   the last. K is cut at multiples of 1024; a block's sum takes the parts of 32 elements in turn, each by one TDPBF16PS
//   (Intel SDM volume 2: even and odd k are summed apart in f32, then added to the sum; subnormals count as zero); the
//   blocks' sums are added in ascending order; a sum that is not finite is taken again in the order above; the bias is
//   added last.
// The scalar level sums in f64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/executor.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/weight_view.h"

namespace sluice {

struct LinearArgs {
  std::int64_t rows = 0;        // M: tokens; 0 is legal
  const float* x = nullptr;     // [rows, weight.cols] f32
  std::int64_t x_stride = 0;    // elements from a row of x to the next
  WeightView weight;            // [N, K]
  const float* bias = nullptr;  // [N] f32, any alignment; null: none
  float* y = nullptr;           // [rows, weight.rows] f32; may not overlap x
  std::int64_t y_stride = 0;    // elements from a row of y to the next
};

// Bytes of scratch (any alignment) that linear() needs: none but for tiles, which take x in a layout of their own.
std::size_t linear_scratch_bytes(Level level, const LinearArgs& args) noexcept;

// K = 0 gives the bias alone (zero without one).
void linear(Level level, const LinearArgs& args, std::span<std::byte> scratch, Executor& executor) noexcept;

}  // namespace sluice

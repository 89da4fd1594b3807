// y = x W^T + b with f32 activations and a weight read in place in the format it is stored in.
//
// The order of a sum, the same for every number of rows, thread count, position and vector level: K is cut at multiples of
// 512; in a block, lane l of 8 accumulates x[k] * w[k] of k = l, l + 8, ... by fused multiply-add in ascending k, the
// last step padded with zeros; the lanes are added as ((l0+l2)+(l1+l3)) + ((l4+l6)+(l5+l7)); the blocks' sums are added
// in ascending order; the bias is added last. Weights are widened exactly, so that equal values give equal bits whatever
// the format. The scalar level sums in f64.
#pragma once

#include <cstdint>

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

// Needs no scratch. K = 0 gives the bias alone (zero without one).
void linear(Level level, const LinearArgs& args, Executor& executor) noexcept;

}  // namespace sluice

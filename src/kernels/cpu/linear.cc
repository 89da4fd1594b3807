#include "kernels/cpu/linear.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/float16.h"
#include "kernels/cpu/linear_core.h"

namespace sluice {
namespace {

template <typename T>
double element(const WeightView& weight, std::int64_t row, std::int64_t col) noexcept {
  T value;
  std::memcpy(&value, weight.bytes + (row * weight.cols + col) * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return static_cast<double>(to_f32(value));
}

double element(const WeightView& weight, std::int64_t row, std::int64_t col) noexcept {
  switch (weight.format) {
    case WeightFormat::f32:
      return element<float>(weight, row, col);
    case WeightFormat::f16:
      return element<f16>(weight, row, col);
    case WeightFormat::bf16:
      return element<bf16>(weight, row, col);
  }
  return 0;
}

void linear_block_scalar(const LinearBlock& block) noexcept {
  for (std::int64_t m = 0; m < block.rows; ++m) {
    const float* x = block.x + (block.x_rows ? block.x_rows[m] : m) * block.x_stride;
    for (std::int64_t n = 0; n < block.weight.rows; ++n) {
      double sum = 0;
      for (std::int64_t k = 0; k < block.weight.cols; ++k)
        sum += static_cast<double>(x[k]) * element(block.weight, n, k);
      float bias = 0;
      if (block.bias) std::memcpy(&bias, reinterpret_cast<const std::byte*>(block.bias) + n * 4, sizeof(bias));
      block.y[m * block.y_stride + n] = static_cast<float>(sum + static_cast<double>(bias));
    }
  }
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept { return (a + b - 1) / b; }

}  // namespace

void linear_block(Level level, const LinearBlock& block) noexcept {
  switch (level) {
    case Level::scalar:
      return linear_block_scalar(block);
    case Level::avx2:
      return avx2::linear_block(block);
    case Level::avx512:
      return avx512::linear_block(block);
  }
}

LinearCut linear_cut(std::int64_t rows, const WeightView& weight) noexcept {
  // Few rows: the weight streams from memory, and an item is about 128 KB of it: the last 8 KB that it fetches ahead are
  // another item's, perhaps another core's. Many: a block of K of the item's rows, at most 192 x 512 f32, stays in the
  // second-level cache while the outputs pass over it, as many as are worth its reading.
  constexpr std::int64_t kFewRows = 18;
  constexpr std::int64_t kItemBytes = 128 << 10;
  constexpr std::int64_t kCacheFloats = 64 << 10;
  constexpr std::int64_t kMost = 192;  // outputs and rows
  const auto even = [](std::int64_t count, std::int64_t most, std::int64_t multiple) {
    return ceil_div(ceil_div(count, ceil_div(count, most)), multiple) * multiple;
  };
  if (rows <= kFewRows) {
    const std::int64_t row_bytes = std::max<std::int64_t>(weight.cols * 2, 1);
    return {std::clamp<std::int64_t>(kItemBytes / row_bytes / 8 * 8, 8, 128), kFewRows};
  }
  const std::int64_t outs = std::max<std::int64_t>(weight.rows, 1);
  return {even(outs, rows * weight.cols <= kCacheFloats ? 64 : kMost, 8), even(rows, kMost, 6)};
}

void linear(Level level, const LinearArgs& args, Executor& executor) noexcept {
  const LinearCut cut = linear_cut(args.rows, args.weight);
  const std::int64_t out_blocks = ceil_div(args.weight.rows, cut.outs);
  const std::int64_t row_blocks = ceil_div(args.rows, cut.rows);
  parallel_for(executor, out_blocks * row_blocks, [&](std::int64_t item) noexcept {
    const std::int64_t m = item / out_blocks * cut.rows;  // neighbours share rows of x
    const std::int64_t n = item % out_blocks * cut.outs;
    LinearBlock block;
    block.x = args.x + m * args.x_stride;
    block.x_stride = args.x_stride;
    block.rows = std::min(cut.rows, args.rows - m);
    block.weight = weight_rows(args.weight, n, std::min(cut.outs, args.weight.rows - n));
    block.bias = args.bias ? args.bias + n : nullptr;
    block.y = args.y + m * args.y_stride + n;
    block.y_stride = args.y_stride;
    linear_block(level, block);
  });
}

}  // namespace sluice

#include "kernels/cpu/linear.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/float16.h"
#include "kernels/cpu/linear_core.h"
#include "kernels/cpu/rounding.h"

namespace sluice {
namespace {

template <typename T>
double element(const WeightView& weight, std::int64_t row, std::int64_t col) noexcept {
  T value;
  std::memcpy(&value, weight.bytes + (row * weight.cols + col) * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return static_cast<double>(to_f32(value));
}

void linear_block_scalar(const LinearBlock& block) noexcept {
  for (std::int64_t m = 0; m < block.rows; ++m) {
    const float* x = row_of_x(block, m);
    for (std::int64_t n = 0; n < block.weight.rows; ++n) {
      double sum = 0;
      for (std::int64_t k = 0; k < block.weight.cols; ++k)
        sum += static_cast<double>(x[k]) * weight_element(block.weight, n, k);
      float bias = 0;
      if (block.bias) std::memcpy(&bias, reinterpret_cast<const std::byte*>(block.bias) + n * 4, sizeof(bias));
      block.y[m * block.y_stride + n] = static_cast<float>(sum + static_cast<double>(bias));
    }
  }
}

// As few parts of at most `most` as it takes, of like size but for its being a multiple.
constexpr std::int64_t even(std::int64_t count, std::int64_t most, std::int64_t multiple) noexcept {
  return ceil_div(ceil_div(count, ceil_div(count, most)), multiple) * multiple;
}

// Packing the rows of x is worth it for so many outputs.
bool takes_tiles(Level level, const WeightView& weight) noexcept {
  constexpr std::int64_t kFewest = 64;
  return level == Level::amx && weight.format == WeightFormat::bf16 && weight.cols > 0 && weight.rows >= kFewest;
}

LinearCut tile_cut(std::int64_t rows, const WeightView& weight) noexcept {
  // Few rows: the weight streams from memory, at least a page of each row of a pair of tiles. Many: a block of K of an item's
  // rows stays in the second-level cache while the outputs pass over it, as many as are worth its reading.
  constexpr std::int64_t kPair = 2 * amx::kTileRows;  // outputs, and rows, that two tiles hold
  constexpr std::int64_t kMostRows = 192, kMostOuts = 256;
  if (rows <= kPair) return {ceil_div(amx::kPageBytes, weight.cols * 2) * kPair, kPair};
  return {even(std::max<std::int64_t>(weight.rows, 1), kMostOuts, kPair), even(rows, kMostRows, kPair)};
}

// Rows that are packed at a time.
std::int64_t packed_rows(const LinearArgs& args) noexcept {
  constexpr std::int64_t kMostBytes = 32 << 20, kRows = 256;
  const auto row_bytes = static_cast<std::int64_t>(amx::packed_bytes(1, args.weight.cols));
  return std::min(args.rows, std::max(kMostBytes / row_bytes / kRows, std::int64_t{1}) * kRows);
}

LinearBlock rows_of(const LinearArgs& args, std::int64_t first, std::int64_t count) noexcept {
  LinearBlock block;
  block.x = args.x + first * args.x_stride;
  block.x_stride = args.x_stride;
  block.rows = count;
  block.weight = args.weight;
  block.bias = args.bias;
  block.y = args.y + first * args.y_stride;
  block.y_stride = args.y_stride;
  return block;
}

void multiply(Level level, const LinearBlock& all, Executor& executor) noexcept {
  const LinearCut cut = linear_cut(level, all.rows, all.weight);
  const std::int64_t out_blocks = ceil_div(all.weight.rows, cut.outs);
  const std::int64_t row_blocks = ceil_div(all.rows, cut.rows);
  parallel_for(executor, out_blocks * row_blocks, [&](std::int64_t item) noexcept {
    const std::int64_t m = item / out_blocks * cut.rows;  // neighbours share rows of x
    const std::int64_t n = item % out_blocks * cut.outs;
    LinearBlock block = all;
    block.x += m * all.x_stride;
    block.rows = std::min(cut.rows, all.rows - m);
    block.weight = weight_rows(all.weight, n, std::min(cut.outs, all.weight.rows - n));
    if (all.bias) block.bias += n;
    block.y += m * all.y_stride + n;
    if (all.packed) block.packed += linear_packed_bytes(level, m, all.weight);
    linear_block(level, block);
  });
}

void pack(const LinearBlock& all, std::byte* packed, Executor& executor) noexcept {
  constexpr std::int64_t kRows = amx::kTileRows;
  parallel_for(executor, ceil_div(all.rows, kRows), [&](std::int64_t item) noexcept {
    LinearBlock block = all;
    block.x += item * kRows * all.x_stride;
    block.rows = std::min(kRows, all.rows - item * kRows);
    linear_pack(block, packed + amx::packed_bytes(item * kRows, all.weight.cols));
  });
}

}  // namespace

double weight_element(const WeightView& weight, std::int64_t row, std::int64_t col) noexcept {
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

void linear_block(Level level, const LinearBlock& block) noexcept {
  switch (level) {
    case Level::scalar:
      return linear_block_scalar(block);
    case Level::avx2:
      return avx2::linear_block(block);
    case Level::avx512:
      return avx512::linear_block(block);
    case Level::amx:
      return block.packed ? amx::linear_block(block) : avx512::linear_block(block);
  }
}

std::size_t linear_packed_bytes(Level level, std::int64_t rows, const WeightView& weight) noexcept {
  return takes_tiles(level, weight) ? amx::packed_bytes(rows, weight.cols) : 0;
}

void linear_pack(const LinearBlock& block, std::byte* packed) noexcept { amx::pack_rows(block, packed); }

LinearCut linear_cut(Level level, std::int64_t rows, const WeightView& weight) noexcept {
  if (takes_tiles(level, weight)) return tile_cut(rows, weight);
  // Few rows: the weight streams from memory, and an item is about 128 KB of it: the last 8 KB that it fetches ahead are
  // another item's, perhaps another core's. Many: a block of K of the item's rows, at most 192 x 512 f32, stays in the
  // second-level cache while the outputs pass over it, as many as are worth its reading.
  constexpr std::int64_t kFewRows = 18;
  constexpr std::int64_t kItemBytes = 128 << 10;
  constexpr std::int64_t kCacheFloats = 64 << 10;
  constexpr std::int64_t kMost = 192;  // outputs and rows
  if (rows <= kFewRows) {
    const std::int64_t row_bytes = std::max<std::int64_t>(weight.cols * 2, 1);
    return {std::clamp<std::int64_t>(kItemBytes / row_bytes / 8 * 8, 8, 128), kFewRows};
  }
  const std::int64_t outs = std::max<std::int64_t>(weight.rows, 1);
  return {even(outs, rows * weight.cols <= kCacheFloats ? 64 : kMost, 8), even(rows, kMost, 6)};
}

std::size_t linear_scratch_bytes(Level level, const LinearArgs& args) noexcept {
  return takes_tiles(level, args.weight) ? amx::packed_bytes(packed_rows(args), args.weight.cols) + 63 : 0;
}

void linear(Level level, const LinearArgs& args, std::span<std::byte> scratch, Executor& executor) noexcept {
  SLUICE_CHECK(scratch.size() >= linear_scratch_bytes(level, args));
  if (!takes_tiles(level, args.weight)) return multiply(level, rows_of(args, 0, args.rows), executor);
  std::byte* packed = line_aligned(scratch);
  const std::int64_t most = packed_rows(args);
  for (std::int64_t m = 0; m < args.rows; m += most) {
    LinearBlock block = rows_of(args, m, std::min(most, args.rows - m));
    pack(block, packed, executor);
    block.packed = packed;
    multiply(level, block, executor);
  }
}

}  // namespace sluice

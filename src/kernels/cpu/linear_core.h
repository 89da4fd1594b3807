// The part of Linear that is compiled once a level: a block of rows against a block of outputs, on one thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/level.h"
#include "kernels/cpu/weight_view.h"

namespace sluice {

// y[m][n] = sum over k of x[row(m)][k] * weight[n][k], in linear.h's order, + bias[n]
struct LinearBlock {
  const float* x = nullptr;  // f32 rows of weight.cols elements, x_stride elements apart
  std::int64_t x_stride = 0;
  const std::int32_t* x_rows = nullptr;  // [rows] row(m), or null: row(m) = m
  std::int64_t rows = 0;
  WeightView weight;
  const float* bias = nullptr;  // [weight.rows] or null, any alignment
  float* y = nullptr;           // [rows, weight.rows] f32, y_stride elements from row to row
  std::int64_t y_stride = 0;
  const std::byte* packed = nullptr;  // the rows as linear_pack() leaves them, where the whole weight takes them packed
};

// Row m of x. Compiled into every level's own code, so never a symbol that the levels share.
[[gnu::always_inline]] inline const float* row_of_x(const LinearBlock& block, std::int64_t m) noexcept {
  return block.x + (block.x_rows ? block.x_rows[m] : m) * block.x_stride;
}

namespace avx2 {
void linear_block(const LinearBlock& block) noexcept;
}
namespace avx512 {
void linear_block(const LinearBlock& block) noexcept;
}
namespace amx {                                // for bf16 weights and packed rows; see linear_pack()
inline constexpr std::int64_t kTileRows = 16;  // of a weight, or of x
inline constexpr std::int64_t kPageBytes =
    4096;  // a tile of few rows' products takes its weight's rows from pages of their own
std::size_t packed_bytes(std::int64_t rows, std::int64_t depth) noexcept;
void pack_rows(const LinearBlock& block, std::byte* packed) noexcept;
void linear_block(const LinearBlock& block) noexcept;
}  // namespace amx

// The block function of a level; the scalar one is the specification.
void linear_block(Level level, const LinearBlock& block) noexcept;

// An element of a weight, for the specifications.
double weight_element(const WeightView& weight, std::int64_t row, std::int64_t col) noexcept;

// Bytes that `rows` rows take when packed for products with a weight; 0 where it is multiplied by the rows as they are.
std::size_t linear_packed_bytes(Level level, std::int64_t rows, const WeightView& weight) noexcept;
// Packs a block's rows; those from a multiple of 16 on start linear_packed_bytes() of the rows before them further on.
// `packed` is a multiple of 64.
void linear_pack(const LinearBlock& block, std::byte* packed) noexcept;

// How a product is cut into items, by its shape alone: `outs` outputs by `rows` rows each.
struct LinearCut {
  std::int64_t outs = 0;
  std::int64_t rows = 0;
};
LinearCut linear_cut(Level level, std::int64_t rows, const WeightView& weight) noexcept;

}  // namespace sluice

// Bulk conversion of weights between f32, f16 and bf16, near memory bandwidth, counting what a format could not hold;
// and the physical rearrangements of an export: transposition and interleaved rows.
//
// Exact where the target can hold the value, round to nearest even elsewhere; NaN stays NaN; every level gives the same
// bits. Addresses may have any alignment; source and target may not overlap. Single-threaded: a caller cuts a tensor
// into pieces and adds the counts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/cpu/level.h"

namespace sluice {

// What happens to a value, in f32 (neg_exp: in f64), before it is rounded to the target.
enum class ConvertStep : std::uint8_t {
  none,
  plus_one,  // 1 + x
  neg_exp,   // -exp(x); for small tensors
};

// Counts of elements, not of bytes.
struct ConvertCounts {
  std::uint64_t elements = 0;
  std::uint64_t not_finite = 0;  // NaN or Inf already in the source
  std::uint64_t overflowed = 0;  // finite, became Inf
  std::uint64_t flushed = 0;     // not zero, became zero
  std::uint64_t subnormal = 0;   // normal in f32, became a subnormal of the target, so lost some of its precision

  ConvertCounts& operator+=(const ConvertCounts& other) noexcept;
};

struct ConvertArgs {
  DType from = DType::f32;  // f32, f16 or bf16, like `to`
  DType to = DType::f32;
  ConvertStep step = ConvertStep::none;
  const std::byte* source = nullptr;  // [count]
  std::byte* target = nullptr;        // [count]
  std::uint64_t count = 0;
};

ConvertCounts convert(Level level, const ConvertArgs& args) noexcept;

// target[c][r] = source[r][c] for elements of 2 or 4 bytes. Strides are in bytes from one row to the next, so that a
// block of a larger matrix can be moved.
struct TransposeArgs {
  std::size_t element_bytes = 4;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const std::byte* source = nullptr;  // [rows, cols]
  std::int64_t source_stride = 0;
  std::byte* target = nullptr;  // [cols, rows]
  std::int64_t target_stride = 0;
};

void transpose(Level level, const TransposeArgs& args) noexcept;

// target rows: even[0], odd[0], even[1], odd[1], ...; each of the two sources is a dense [rows, row_bytes].
void interleave_rows(const std::byte* even, const std::byte* odd, std::int64_t rows, std::size_t row_bytes,
                     std::byte* target) noexcept;

}  // namespace sluice

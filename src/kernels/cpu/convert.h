// Bulk conversion of weights between f32, f16 and bf16, near memory bandwidth, counting what a format could not hold.
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

}  // namespace sluice

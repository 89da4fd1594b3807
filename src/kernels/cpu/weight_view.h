// A weight matrix as it lies in a mapped package: read in place, never copied, at any address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/dtype.h"

namespace sluice {

// How the elements of a weight are stored. Block formats (int8, int4, fp8, nvfp4) will be further rows.
enum class WeightFormat : std::uint8_t { f32, f16, bf16 };

constexpr std::size_t weight_element_bytes(WeightFormat format) noexcept { return format == WeightFormat::f32 ? 4 : 2; }

// Empty for a dtype no kernel reads as a weight.
constexpr std::optional<WeightFormat> weight_format(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32:
      return WeightFormat::f32;
    case DType::f16:
      return WeightFormat::f16;
    case DType::bf16:
      return WeightFormat::bf16;
    default:
      return std::nullopt;
  }
}

// [rows, cols], row-major and dense. `bytes` may have any alignment.
struct WeightView {
  const std::byte* bytes = nullptr;
  WeightFormat format = WeightFormat::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

// Rows [first, first + count) of a weight.
constexpr WeightView weight_rows(const WeightView& weight, std::int64_t first, std::int64_t count) noexcept {
  const std::int64_t row_bytes = weight.cols * static_cast<std::int64_t>(weight_element_bytes(weight.format));
  return {weight.bytes + first * row_bytes, weight.format, count, weight.cols};
}

}  // namespace sluice

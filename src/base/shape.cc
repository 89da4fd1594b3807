#include "base/shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>

namespace sluice {

std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

std::optional<std::uint64_t> element_count(std::span<const std::int64_t> shape) noexcept {
  std::uint64_t count = 1;
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    if (extent == 0) empty = true;
    const auto next = checked_mul(count, static_cast<std::uint64_t>(extent == 0 ? 1 : extent));
    if (!next || *next > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
    count = *next;
  }
  return empty ? 0 : count;
}

std::optional<std::uint64_t> byte_count(std::span<const std::int64_t> shape, DType dtype) noexcept {
  const auto count = element_count(shape);
  if (!count) return std::nullopt;
  const auto bytes = checked_mul(*count, dtype_bytes(dtype));
  if (!bytes || *bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
  return bytes;
}

std::string to_string(std::span<const std::int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace sluice

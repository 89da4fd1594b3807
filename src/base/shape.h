// Tensor extents and arithmetic on them that cannot overflow.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace sluice {

using Shape = std::vector<std::int64_t>;

std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) noexcept;
std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) noexcept;

// Product of the extents; empty when an extent is negative or the product does not fit 63 bits. A scalar has 1.
std::optional<std::uint64_t> element_count(std::span<const std::int64_t> shape) noexcept;
// Bytes of a dense tensor, with the same limits.
std::optional<std::uint64_t> byte_count(std::span<const std::int64_t> shape, DType dtype) noexcept;

std::string to_string(std::span<const std::int64_t> shape);  // "[3, 128]"

}  // namespace sluice

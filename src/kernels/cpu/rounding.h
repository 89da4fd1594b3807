// Rounding of counts and addresses, for the cuts of work and the layouts of scratch. Not for what is compiled once a level.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept { return (a + b - 1) / b; }

// The first address in scratch that is a multiple of 64.
inline std::byte* line_aligned(std::span<std::byte> scratch) noexcept {
  return scratch.data() + (64 - reinterpret_cast<std::uintptr_t>(scratch.data()) % 64) % 64;
}

}  // namespace sluice

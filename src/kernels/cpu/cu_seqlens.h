// Cumulative offsets of packed rows: row b of a ragged batch owns tokens cu_seqlens[b] .. cu_seqlens[b + 1] - 1.
#pragma once

#include <cstdint>
#include <span>

namespace sluice {

enum class CuSeqlensError : std::uint8_t { none, empty, first_not_zero, decreasing, last_not_total };

// What is wrong with the offsets, where (an index into them) and the value found there.
struct CuSeqlensCheck {
  CuSeqlensError error = CuSeqlensError::none;
  std::int64_t index = 0;
  std::int64_t value = 0;

  bool ok() const noexcept { return error == CuSeqlensError::none; }
};

// Offsets come from outside: they must start at 0, never decrease and end at `tokens`. Empty rows and an empty batch
// (one offset, 0) are legal. A kernel may be called only with offsets that passed.
CuSeqlensCheck validate_cu_seqlens(std::span<const std::int32_t> cu_seqlens, std::int64_t tokens) noexcept;

}  // namespace sluice

#include "kernels/cpu/cu_seqlens.h"

namespace sluice {

CuSeqlensCheck validate_cu_seqlens(std::span<const std::int32_t> cu_seqlens, std::int64_t tokens) noexcept {
  if (cu_seqlens.empty()) return {CuSeqlensError::empty, 0, 0};
  if (cu_seqlens.front() != 0) return {CuSeqlensError::first_not_zero, 0, cu_seqlens.front()};
  for (std::size_t i = 1; i < cu_seqlens.size(); ++i) {
    if (cu_seqlens[i] < cu_seqlens[i - 1]) {
      return {CuSeqlensError::decreasing, static_cast<std::int64_t>(i), cu_seqlens[i]};
    }
  }
  if (cu_seqlens.back() != tokens) {
    return {CuSeqlensError::last_not_total, static_cast<std::int64_t>(cu_seqlens.size()) - 1, cu_seqlens.back()};
  }
  return {};
}

}  // namespace sluice

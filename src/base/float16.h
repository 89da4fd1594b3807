// bfloat16 and IEEE half as storage types, with exact widening and round-to-nearest-even narrowing.
#pragma once

#include <bit>
#include <cstdint>

namespace sluice {

struct bf16 {
  std::uint16_t bits = 0;
};

struct f16 {
  std::uint16_t bits = 0;
};

constexpr float to_f32(float x) noexcept { return x; }

constexpr float to_f32(bf16 x) noexcept { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }

constexpr float to_f32(f16 x) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;  // exact: at most 10 significant bits
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
}

// NaN stays NaN (quiet, the top payload bits kept); everything else rounds to nearest even.
constexpr bf16 to_bf16(float x) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>(bits >> 16 | 0x40u)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

constexpr f16 to_f16(float x) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu))};
  if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // 65520 and above round to Inf
  if (magnitude >= 0x38800000u) {
    const std::uint32_t rebased = magnitude - 0x38000000u;
    return {static_cast<std::uint16_t>(sign | (rebased + 0xfffu + (rebased >> 13 & 1u)) >> 13)};
  }
  // Subnormal halves: adding 0.5 aligns the value so that the float addition itself rounds to nearest even at 2^-24.
  const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
  return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(aligned) - 0x3f000000u))};
}

template <typename T>
constexpr T from_f32(float x) noexcept;
template <>
constexpr float from_f32<float>(float x) noexcept {
  return x;
}
template <>
constexpr bf16 from_f32<bf16>(float x) noexcept {
  return to_bf16(x);
}
template <>
constexpr f16 from_f32<f16>(float x) noexcept {
  return to_f16(x);
}

}  // namespace sluice

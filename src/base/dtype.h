// Element types of tensors, whatever file or runtime they come from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace sluice {

enum class DType : std::uint8_t {
  f64,
  f32,
  f16,
  bf16,
  f8_e4m3,
  f8_e5m2,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean
};

std::size_t dtype_bytes(DType dtype) noexcept;

// "f32", "bf16", ...: the spelling of messages, options and manifests.
std::string_view dtype_name(DType dtype) noexcept;
std::optional<DType> dtype_from_name(std::string_view name) noexcept;

constexpr bool is_float_weight(DType d) noexcept { return d == DType::f32 || d == DType::f16 || d == DType::bf16; }

}  // namespace sluice

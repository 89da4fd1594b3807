#include "base/dtype.h"

#include <array>

namespace sluice {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  std::size_t bytes;
};

constexpr std::array<Row, 15> kRows{{
    {DType::f64, "f64", 8},
    {DType::f32, "f32", 4},
    {DType::f16, "f16", 2},
    {DType::bf16, "bf16", 2},
    {DType::f8_e4m3, "f8_e4m3", 1},
    {DType::f8_e5m2, "f8_e5m2", 1},
    {DType::i64, "i64", 8},
    {DType::i32, "i32", 4},
    {DType::i16, "i16", 2},
    {DType::i8, "i8", 1},
    {DType::u64, "u64", 8},
    {DType::u32, "u32", 4},
    {DType::u16, "u16", 2},
    {DType::u8, "u8", 1},
    {DType::boolean, "bool", 1},
}};

const Row& row(DType dtype) noexcept { return kRows[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::size_t dtype_bytes(DType dtype) noexcept { return row(dtype).bytes; }

std::string_view dtype_name(DType dtype) noexcept { return row(dtype).name; }

std::optional<DType> dtype_from_name(std::string_view name) noexcept {
  for (const Row& r : kRows) {
    if (r.name == name) return r.dtype;
  }
  return std::nullopt;
}

}  // namespace sluice

// ONNX's numbers for element types: TensorProto.DataType, the value of Cast's attribute `to`, and the values of ONNX
// Runtime's ONNXTensorElementDataType.
#pragma once

#include <cstdint>
#include <optional>

#include "base/dtype.h"

namespace sluice {

constexpr std::int32_t onnx_element_type(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32:
      return 1;
    case DType::u8:
      return 2;
    case DType::i8:
      return 3;
    case DType::u16:
      return 4;
    case DType::i16:
      return 5;
    case DType::i32:
      return 6;
    case DType::i64:
      return 7;
    case DType::boolean:
      return 9;
    case DType::f16:
      return 10;
    case DType::f64:
      return 11;
    case DType::u32:
      return 12;
    case DType::u64:
      return 13;
    case DType::bf16:
      return 16;
    case DType::f8_e4m3:
      return 17;
    case DType::f8_e5m2:
      return 19;
  }
  return 0;
}

constexpr std::optional<DType> dtype_of_onnx(std::int32_t element_type) noexcept {
  for (const DType d :
       {DType::f32, DType::u8, DType::i8, DType::u16, DType::i16, DType::i32, DType::i64, DType::boolean, DType::f16,
        DType::f64, DType::u32, DType::u64, DType::bf16, DType::f8_e4m3, DType::f8_e5m2}) {
    if (onnx_element_type(d) == element_type) return d;
  }
  return std::nullopt;
}

}  // namespace sluice

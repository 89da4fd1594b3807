#include "ops/ort.h"

#include <array>
#include <string>
#include <utility>

#include "base/error.h"

namespace sluice::ops {
namespace {

constexpr std::array<std::pair<DType, ONNXTensorElementDataType>, 15> kTypes{{
    {DType::f64, ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE},
    {DType::f32, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT},
    {DType::f16, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16},
    {DType::bf16, ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16},
    {DType::f8_e4m3, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN},
    {DType::f8_e5m2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2},
    {DType::i64, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64},
    {DType::i32, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32},
    {DType::i16, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16},
    {DType::i8, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8},
    {DType::u64, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64},
    {DType::u32, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32},
    {DType::u16, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16},
    {DType::u8, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8},
    {DType::boolean, ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL},
}};

}  // namespace

void check(const OrtApi& api, OrtStatus* status) {
  if (status == nullptr) return;
  const std::string message = api.GetErrorMessage(status);
  api.ReleaseStatus(status);
  throw Error(message);
}

DType dtype_from_ort(ONNXTensorElementDataType type, std::string_view what) {
  for (const auto& [ours, theirs] : kTypes) {
    if (theirs == type) return ours;
  }
  fail("{}: ONNX Runtime element type {} is not supported", what, static_cast<int>(type));
}

ONNXTensorElementDataType dtype_to_ort(DType dtype) noexcept {
  for (const auto& [ours, theirs] : kTypes) {
    if (ours == dtype) return theirs;
  }
  return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
}

}  // namespace sluice::ops

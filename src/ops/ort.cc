#include "ops/ort.h"

#include <string>

#include "base/error.h"
#include "base/onnx_type.h"

namespace sluice::ops {

void check(const OrtApi& api, OrtStatus* status) {
  if (status == nullptr) return;
  const std::string message = api.GetErrorMessage(status);
  api.ReleaseStatus(status);
  throw Error(message);
}

DType dtype_from_ort(ONNXTensorElementDataType type, std::string_view what) {
  if (const auto dtype = dtype_of_onnx(type)) return *dtype;
  fail("{}: expected numbers, found ONNX's element type {}", what, static_cast<int>(type));
}

ONNXTensorElementDataType dtype_to_ort(DType dtype) noexcept {
  return static_cast<ONNXTensorElementDataType>(onnx_element_type(dtype));
}

}  // namespace sluice::ops

#include "session/ort.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"

namespace sluice::ort {
namespace {

constexpr std::array<std::pair<DType, ONNXTensorElementDataType>, 15> kTypes = {{
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

void ORT_API_CALL ignore_log(void*, OrtLoggingLevel, const char*, const char*, const char*, const char*) {}

std::string one_line(std::string text) {
  std::replace_if(text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r' || c == '\t'; }, ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

}  // namespace

const OrtApi& api() {
  static const OrtApi* const table = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  if (table == nullptr) {
    fail("ONNX Runtime {} serves no C API of version {}; expected 1.{} or later", OrtGetApiBase()->GetVersionString(),
         ORT_API_VERSION, ORT_API_VERSION);
  }
  return *table;
}

void check(OrtStatus* status, std::string_view where) {
  if (status == nullptr) return;
  std::string message = one_line(api().GetErrorMessage(status));
  api().ReleaseStatus(status);
  fail("{}: ONNX Runtime: {}", where, message);
}

ONNXTensorElementDataType element_type(DType dtype) noexcept {
  for (const auto& [ours, theirs] : kTypes) {
    if (ours == dtype) return theirs;
  }
  return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
}

std::optional<DType> dtype_of(ONNXTensorElementDataType type) noexcept {
  for (const auto& [ours, theirs] : kTypes) {
    if (theirs == type) return ours;
  }
  return std::nullopt;
}

Owner<OrtEnv> make_environment() {
  OrtEnv* environment = nullptr;
  check(api().CreateEnvWithCustomLogger(ignore_log, nullptr, ORT_LOGGING_LEVEL_FATAL, "sluice", &environment),
        "environment");
  return Owner<OrtEnv>(environment);
}

}  // namespace sluice::ort

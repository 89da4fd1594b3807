// What session/ needs around ONNX Runtime's C API: owners, statuses as errors, element types.
#pragma once

#include <onnxruntime_c_api.h>

#include <memory>
#include <string>
#include <string_view>

#include "base/onnx_type.h"

namespace sluice::ort {

// The C API of the version this was compiled for. Throws Error when the library at hand is too old to serve it.
const OrtApi& api();

// Throws Error "WHERE: ONNX Runtime: MESSAGE" on one line when `status` is one; releases it.
void check(OrtStatus* status, std::string_view where);

struct Release {
  void operator()(OrtEnv* p) const noexcept { api().ReleaseEnv(p); }
  void operator()(OrtSession* p) const noexcept { api().ReleaseSession(p); }
  void operator()(OrtSessionOptions* p) const noexcept { api().ReleaseSessionOptions(p); }
  void operator()(OrtMemoryInfo* p) const noexcept { api().ReleaseMemoryInfo(p); }
  void operator()(OrtValue* p) const noexcept { api().ReleaseValue(p); }
  void operator()(OrtTypeInfo* p) const noexcept { api().ReleaseTypeInfo(p); }
};
template <typename T>
using Owner = std::unique_ptr<T, Release>;

constexpr ONNXTensorElementDataType element_type(DType dtype) noexcept {
  return static_cast<ONNXTensorElementDataType>(onnx_element_type(dtype));
}

// One environment a process, silent: what it would log comes back as statuses.
Owner<OrtEnv> make_environment();

}  // namespace sluice::ort

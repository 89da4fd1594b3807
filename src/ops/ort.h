// The little of ONNX Runtime's C API that operators use, with errors as exceptions and nothing linked: every function
// comes from the table the loading program passed in. Header version 21 runs on every later runtime.
#pragma once

#ifndef ORT_API_MANUAL_INIT
#define ORT_API_MANUAL_INIT
#endif
#include <onnxruntime_c_api.h>

#include <string_view>

#include "base/dtype.h"

namespace sluice::ops {

inline constexpr std::uint32_t kOrtApiVersion = 21;

// Throws Error with ONNX Runtime's words when `status` is one; releases it.
void check(const OrtApi& api, OrtStatus* status);

// Error naming `what` when the element type is none of ours (string, complex, 4-bit, ...).
DType dtype_from_ort(ONNXTensorElementDataType type, std::string_view what);
ONNXTensorElementDataType dtype_to_ort(DType dtype) noexcept;

// Releases an object of the C API at the end of a scope.
template <typename T>
class OrtHandle {
 public:
  using Release = void(ORT_API_CALL*)(T*);
  explicit OrtHandle(Release release) : release_(release) {}
  OrtHandle(T* object, Release release) : object_(object), release_(release) {}
  ~OrtHandle() {
    if (object_ != nullptr) release_(object_);
  }
  OrtHandle(const OrtHandle&) = delete;
  OrtHandle& operator=(const OrtHandle&) = delete;

  T* get() const noexcept { return object_; }
  T** out() noexcept { return &object_; }

 private:
  T* object_ = nullptr;
  Release release_;
};

}  // namespace sluice::ops

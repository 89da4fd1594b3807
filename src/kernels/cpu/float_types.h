// From a float DType to the storage type of the buffers behind a void pointer.
#pragma once

#include "base/dtype.h"
#include "base/float16.h"

namespace sluice {

// Calls body(T()) with T = float, f16 or bf16; types that are none of them do not reach a kernel.
template <typename Body>
void with_float_type(DType type, Body&& body) noexcept {
  switch (type) {
    case DType::f16:
      return body(f16());
    case DType::bf16:
      return body(bf16());
    default:
      return body(float());
  }
}

}  // namespace sluice

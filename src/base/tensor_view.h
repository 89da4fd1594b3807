// A dense, row-major tensor that somebody else owns. Its address may be unaligned.
#pragma once

#include <cstddef>
#include <span>

#include "base/shape.h"

namespace sluice {

struct TensorView {
  DType dtype = DType::f32;
  Shape shape;
  std::span<const std::byte> bytes;  // byte_count(shape, dtype) bytes
};

}  // namespace sluice

// Sets of element types that many operators share.
#pragma once

#include "opset/operator.h"

namespace sluice {

inline constexpr TypeSet kActivations{DType::f32, DType::f16, DType::bf16};
inline constexpr TypeSet kF32{DType::f32};
inline constexpr TypeSet kI32{DType::i32};
inline constexpr TypeSet kI64{DType::i64};
inline constexpr TypeSet kIndices{DType::i32, DType::i64};
// What ai.onnx computes with, of the types we know.
inline constexpr TypeSet kNumbers{DType::f64, DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64};
inline constexpr TypeSet kFloats{DType::f64, DType::f32, DType::f16, DType::bf16};
inline constexpr TypeSet kAnything{DType::f64, DType::f32, DType::f16,    DType::bf16, DType::i64,
                                   DType::i32, DType::i16, DType::i8,     DType::u64,  DType::u32,
                                   DType::u16, DType::u8,  DType::boolean};

}  // namespace sluice

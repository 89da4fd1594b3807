// Output types and shapes, told to ONNX Runtime when it loads a graph: opset/ computes them.
#pragma once

#include <atomic>
#include <optional>

#include "ops/ort.h"
#include "opset/operator.h"

namespace sluice::ops {

// Numbers the extents that nothing is known of: ONNX Runtime takes equal symbols for equal extents, so each needs its
// own.
using UnknownExtents = std::atomic<std::uint64_t>;

// The one element type of a port, when its type variable leaves no choice.
std::optional<DType> only_type(const OperatorSpec& spec, const PortSpec& port);

// Sets type and shape of the outputs a node must have; its element type is that of the first input with the same type
// variable. Optional outputs are left alone: the C API does not tell which ones a node lists, and writes past the end
// when told of one that it does not (those with a choice of types must be declared in the model, as graph outputs are).
// Shapes that do not fit the contract are left unknown, for the kernel to complain of. Says nothing when the rank of an
// input is unknown.
void infer(const OrtApi& api, const OperatorSpec& spec, OrtShapeInferContext& context, UnknownExtents& unknown);

}  // namespace sluice::ops

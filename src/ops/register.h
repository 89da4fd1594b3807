// Gives the operators to ONNX Runtime sessions, from a program that links this library instead of loading it.
#pragma once

#include "kernels/cpu/level.h"
#include "ops/ort.h"

namespace sluice::ops {

// Adds the domains com.microsoft (GatedDeltaNet, VarlenLinearAttention, VarlenCausalConvWithState, PagedAttention,
// GatedRMSNorm) and sluice (Linear, MoE) to the options of a session yet to be created. All its kernels run at `level`, which must be
// supported here. Returns null, or a status the caller releases. `base` is the runtime's, of version 1.21 or later.
OrtStatus* register_custom_ops(OrtSessionOptions* options, const OrtApiBase* base, Level level) noexcept;

}  // namespace sluice::ops

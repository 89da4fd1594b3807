// GatedRMSNorm's contract, checked: from a node's attributes and inputs to the kernel's arguments.
#pragma once

#include "kernels/cpu/gated_rms_norm.h"
#include "ops/argument.h"
#include "ops/attributes.h"

namespace sluice::ops {

struct GatedRmsNormAttributes {
  float epsilon = 1e-5f;
  NormGate activation = NormGate::silu;
};

GatedRmsNormAttributes read_gated_rms_norm(const Attributes& attributes);

// x [.., H * C], scale of C elements in any shape, gate like x. The result lacks only the output, whose shape is x's.
GatedRmsNormArgs validate_gated_rms_norm(const GatedRmsNormAttributes& attributes, const Argument& x,
                                         const Argument& scale, const Argument& gate);

}  // namespace sluice::ops

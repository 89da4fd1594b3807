// The operators of the library, one adapter each; register.cc gives them to a session.
#pragma once

#include "kernels/cpu/level.h"
#include "ops/custom_op.h"

namespace sluice::ops {

CustomOp gated_delta_net_op(const OrtApi& api, Level level);
CustomOp varlen_linear_attention_op(const OrtApi& api, Level level);
CustomOp varlen_causal_conv_op(const OrtApi& api, Level level);
CustomOp paged_attention_op(const OrtApi& api, Level level);
CustomOp linear_op(const OrtApi& api, Level level);
CustomOp moe_op(const OrtApi& api, Level level);

}  // namespace sluice::ops

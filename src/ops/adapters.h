// The operators of the library, one adapter each: every function appends one's registrations. register.cc gives them to
// a session.
#pragma once

#include <vector>

#include "kernels/cpu/level.h"
#include "ops/custom_op.h"

namespace sluice::ops {

void add_gated_delta_net(const OrtApi& api, Level level, std::vector<CustomOp>& ops);
void add_varlen_linear_attention(const OrtApi& api, Level level, std::vector<CustomOp>& ops);
void add_varlen_causal_conv(const OrtApi& api, Level level, std::vector<CustomOp>& ops);
void add_paged_attention(const OrtApi& api, Level level, std::vector<CustomOp>& ops);
void add_gated_rms_norm(const OrtApi& api, Level level, std::vector<CustomOp>& ops);
void add_linear(const OrtApi& api, Level level, std::vector<CustomOp>& ops);
void add_moe(const OrtApi& api, Level level, std::vector<CustomOp>& ops);

}  // namespace sluice::ops

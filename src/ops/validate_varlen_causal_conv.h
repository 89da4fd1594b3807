// VarlenCausalConvWithState's contract, checked: from a node's attributes and inputs to the kernel's arguments.
#pragma once

#include "kernels/cpu/causal_conv.h"
#include "ops/argument.h"
#include "ops/attributes.h"

namespace sluice::ops {

struct VarlenCausalConvAttributes {
  ConvActivation activation = ConvActivation::none;
  std::int64_t dilation = 1;
  std::int64_t capacity = 0;  // 0..8 tokens a row
};

VarlenCausalConvAttributes read_varlen_causal_conv(const Attributes& attributes);

struct VarlenCausalConvInputs {
  Argument input;                       // [tokens, C]
  Argument weight;                      // [C, 1, K]
  Argument cumulative_sequence_length;  // [B + 1]
  Argument bias;                        // [C], may be absent
  Argument initial_state;               // [B, C, (K - 1) * dilation]
  Argument capture_count;               // [B], exactly with a capacity
  Argument kernel_delta;                // refused, like previous_mask: the runtime's CPU kernel refuses them too
  Argument previous_mask;
};

// args lacks only output, final_state and capture. May be moved, not copied.
struct VarlenCausalConvCall {
  CausalConvArgs args;
  Dims output;   // [tokens, C]
  Dims state;    // [B, C, (K - 1) * dilation]
  Dims capture;  // [B, capacity, C]
  Indices cu_seqlens;
  Indices capture_count;
};

VarlenCausalConvCall validate_varlen_causal_conv(const VarlenCausalConvAttributes& attributes,
                                                 const VarlenCausalConvInputs& inputs);

}  // namespace sluice::ops

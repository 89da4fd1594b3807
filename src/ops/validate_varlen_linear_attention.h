// VarlenLinearAttention's contract, checked: from a node's attributes and inputs to the kernel's arguments.
#pragma once

#include "kernels/cpu/varlen_linear_attention.h"
#include "ops/argument.h"
#include "ops/attributes.h"

namespace sluice::ops {

struct VarlenLinearAttentionAttributes {
  UpdateRule rule = UpdateRule::gated_delta;
  float scale = 0.0f;  // 0 = 1 / sqrt(dk)
  bool softplus_decay = false;
  BetaActivation beta_activation = BetaActivation::none;
};

// max_checkpoints is accepted as 0 only.
VarlenLinearAttentionAttributes read_varlen_linear_attention(const Attributes& attributes);

struct VarlenLinearAttentionInputs {
  Argument query;                       // [N, Hq, dk]
  Argument key;                         // [N, Hk, dk]
  Argument value;                       // [N, Hv, dv]
  Argument cumulative_sequence_length;  // [B + 1]
  Argument initial_state;               // [B, Hv, dv, dk] f32
  Argument decay;                       // [N, Hv] or [N, Hv, dk]
  Argument beta;                        // [N, Hv] or [N, 1]
  Argument a_log;                       // [Hv] or [Hv, dk] f32
  Argument dt_bias;                     // like a_log
};

// args lacks only output and final_state. May be moved, not copied.
struct VarlenLinearAttentionCall {
  VarlenLinearAttentionArgs args;
  Dims output;       // [N, max(Hq, Hv), dv]
  Dims state;        // [B, Hv, dv, dk]
  Dims checkpoints;  // [0, B, Hv, dv, dk]
  Indices cu_seqlens;
};

VarlenLinearAttentionCall validate_varlen_linear_attention(const VarlenLinearAttentionAttributes& attributes,
                                                           const VarlenLinearAttentionInputs& inputs);

}  // namespace sluice::ops

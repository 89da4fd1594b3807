// GatedDeltaNet's contract, checked: from a node's attributes and inputs to the kernel's arguments, or one clear error.
#pragma once

#include "kernels/cpu/gated_delta_net.h"
#include "ops/argument.h"
#include "ops/attributes.h"

namespace sluice::ops {

struct GatedDeltaNetAttributes {
  UpdateRule rule = UpdateRule::gated_delta;
  float scale = 0.0f;  // 0 = 1 / sqrt(k_dim)
  GateActivation gate_activation = GateActivation::none;
  float gate_lower_bound = -5.0f;
  BetaActivation beta_activation = BetaActivation::none;
  bool qk_l2_norm = false;
  std::int64_t capacity = 0;  // 0..8 tokens a row
};

// Throws Error for an unknown word or a number out of range. chunk_size is checked and, being a hint, dropped.
GatedDeltaNetAttributes read_gated_delta_net(const Attributes& attributes);

struct GatedDeltaNetInputs {
  Argument query;                // [tokens, Hq, dk], [B, S, Hq, dk], or packed [.., 2 * Hk * dk + Hv * dv]
  Argument key;                  // [.., Hk, dk]; absent with a packed query
  Argument value;                // [.., Hv, dv]; absent with a packed query
  Argument cu_seqlens;           // [B + 1]
  Argument decay;                // [.., Hv] or [.., Hv, dk]
  Argument beta;                 // [.., Hv]
  Argument initial_state;        // [B, Hv, dv, dk] f32
  Argument a_log;                // [Hv] f32
  Argument dt_bias;              // [Hv] f32; with a per-key decay also [Hv, dk] or [Hv * dk]
  Argument capture_count;        // [B]
  Argument state_update_active;  // [1]
};

// What remains is to allocate the outputs and to run: args lacks only output, final_state and capsule.
struct GatedDeltaNetCall {
  GatedDeltaNetArgs args;
  Dims output;   // [.., max(Hq, Hv), dv]
  Dims state;    // [B, Hv, dv, dk]
  Dims capsule;  // [B, capacity * (decay width + Hk * dk + Hv * dv)]
  Indices cu_seqlens;
  Indices capture_count;
};

// Throws Error naming the input, what was expected and what was found. The call points into the inputs' data, and, for
// unaligned indices, into itself: it may be moved, not copied.
GatedDeltaNetCall validate_gated_delta_net(const GatedDeltaNetAttributes& attributes,
                                           const GatedDeltaNetInputs& inputs);

}  // namespace sluice::ops

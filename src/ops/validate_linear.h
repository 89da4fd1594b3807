// The contracts of sluice.Linear and sluice.MoE, checked.
#pragma once

#include "kernels/cpu/linear.h"
#include "kernels/cpu/moe.h"
#include "ops/argument.h"
#include "ops/attributes.h"

namespace sluice::ops {

// args lacks only y.
struct LinearCall {
  LinearArgs args;
  Dims output;  // [.., N]
};

// weight [N, K] in f32, f16 or bf16, read in place.
WeightView validate_linear_weight(const Argument& weight);
// x [.., K] f32; bias [N] f32 or absent. `weight_argument` names the weight in errors.
LinearCall validate_linear(const Argument& x, const WeightView& weight, const Argument& bias);

struct MoeAttributes {
  std::int64_t k = 1;
  bool normalize = true;
  MoeActivation activation = MoeActivation::silu;
};

MoeAttributes read_moe(const Attributes& attributes);

// The experts' matrices, validated once when they are constants.
struct MoeWeights {
  ExpertWeights gate;  // [E, I, H]
  ExpertWeights up;    // [E, I, H]
  ExpertWeights down;  // [E, H, I]
  std::int64_t experts = 0;
  std::int64_t intermediate = 0;
  std::int64_t hidden = 0;
};

// gate_up [E, 2I, H] (gate rows first) with `up` absent, or gate [E, I, H] with up [E, I, H]; down [E, H, I].
MoeWeights validate_moe_weights(const MoeAttributes& attributes, const Argument& gate_up, const Argument& down,
                                const Argument& up);

// x [T, H] f32, router_logits [T, E] f32. The result lacks only y, whose shape is x's.
MoeArgs validate_moe(const MoeAttributes& attributes, const MoeWeights& weights, const Argument& x,
                     const Argument& router_logits);

}  // namespace sluice::ops

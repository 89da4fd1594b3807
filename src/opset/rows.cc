// com.microsoft operators on rows of activations: norms, gates, experts.
#include "base/error.h"
#include "opset/operators.h"
#include "opset/shape_context.h"
#include "opset/type_sets.h"

namespace sluice {
namespace {

void infer_skip_norm(ShapeContext& context) {
  const Extents& input = context.input_shape(0);
  if (input.size() != 2 && input.size() != 3) fail("input 0 has shape {}: expected 2 or 3 axes", to_string(input));
  require_shape(context, 1, input);
  require_shape(context, 2, {input.back()});
  require_shape(context, 3, {input.back()});
  Extents statistics(input.begin(), input.end() - 1);
  statistics.push_back(extent(1));
  context.set_output_shape(0, input);
  if (context.has_output(1)) context.set_output_shape(1, statistics);
  if (context.has_output(2)) context.set_output_shape(2, statistics);
  if (context.has_output(3)) context.set_output_shape(3, input);
}

// Groups of C = size of the scale are normalised within the last axis.
void infer_gated_rms_norm(ShapeContext& context) {
  const Extents& input = context.input_shape(0);
  const Extent& group = require_rank(context, 1, 1)[0];
  if (input.empty() || (input.back().value >= 0 && group.value >= 0 && !divide(input.back(), group))) {
    fail("input 0 has shape {}: its last extent is no multiple of the scale's {}", to_string(input), to_string(group));
  }
  require_shape(context, 2, input);
  context.set_output_shape(0, input);
}

void infer_gated_add(ShapeContext& context) {
  const Extents& x = context.input_shape(0);
  if (x.empty()) fail("input 0 is a scalar, expected [.., channels]");
  require_shape(context, 1, x);
  if (!context.has_input(3)) {
    Extents gate(x.begin(), x.end() - 1);
    gate.push_back(extent(1));
    require_shape(context, 2, gate);
  }
  context.set_output_shape(0, x);
}

// swiglu_fusion 1 or 2: fc1 holds gate and up rows [E, 2I, H]; fc2 is [E, H, I].
void infer_moe(ShapeContext& context) {
  const Extents& input = context.input_shape(0);
  const Extents& fc1 = require_rank(context, 2, 3);
  const Extents& fc2 = require_rank(context, 4, 3);
  const Extents& router = require_rank(context, 1, 2);
  require_shape(context, 2, {router[1], fc1[1], input.back()});
  const bool fused = context.integer("swiglu_fusion") != 0;
  require_shape(context, 4, {router[1], input.back(), fc2[2]});
  if (!may_equal(fc1[1], fused ? multiply(extent(2), fc2[2]) : fc2[2])) {
    fail("inputs 2 and 4 have shapes {} and {}: rows of the first do not fit columns of the second", to_string(fc1),
         to_string(fc2));
  }
  context.set_output_shape(0, input);
}

constexpr AttributeSpec kSkipNormAttributes[] = {float_attribute("epsilon", 1e-12f)};
constexpr TypeVariable kSkipNormTypes[] = {{"T", kActivations}, {"U", kF32}};
constexpr PortSpec kSkipNormInputs[] = {
    {"input", "T"}, {"skip", "T"}, {"gamma", "T"}, {"bias", "T", Presence::optional}};
constexpr PortSpec kSkipNormOutputs[] = {{"output", "T"},
                                         {"mean", "U", Presence::optional},
                                         {"inv_std_var", "U", Presence::optional},
                                         {"input_skip_bias_sum", "T", Presence::optional}};

constexpr AttributeSpec kGatedRMSNormAttributes[] = {float_attribute("epsilon", 1e-5f),
                                                     text_attribute("activation", "silu")};
constexpr TypeVariable kActivationTypes[] = {{"T", kActivations}};
constexpr PortSpec kGatedRMSNormInputs[] = {{"X", "T"}, {"scale", "T"}, {"gate", "T"}};
constexpr PortSpec kGatedRMSNormOutputs[] = {{"Y", "T"}};

constexpr PortSpec kGatedAddInputs[] = {
    {"X", "T"}, {"Y", "T"}, {"gate", "T"}, {"gate_weight", "T", Presence::optional}};
constexpr PortSpec kGatedAddOutputs[] = {{"output", "T"}};

constexpr AttributeSpec kMoEAttributes[] = {
    int_attribute("k", 1),
    text_attribute("activation_type", "relu"),
    int_attribute("normalize_routing_weights", 0),
    int_attribute("use_sparse_mixer", 0),
    int_attribute("swiglu_fusion", 0),
    optional_attribute("swiglu_limit", AttributeKind::number),
    int_attribute("swiglu_limit_after_activation", 0),
    float_attribute("activation_alpha", 1.0f),
    float_attribute("activation_beta", 0.0f),
};
constexpr PortSpec kMoEInputs[] = {
    {"input", "T"},
    {"router_probs", "T"},
    {"fc1_experts_weights", "T"},
    {"fc1_experts_bias", "T", Presence::optional},
    {"fc2_experts_weights", "T"},
    {"fc2_experts_bias", "T", Presence::optional},
    {"fc3_experts_weights", "T", Presence::optional},
    {"fc3_experts_bias", "T", Presence::optional},
};
constexpr PortSpec kMoEOutputs[] = {{"output", "T"}};

}  // namespace

constinit const OperatorSpec kSkipSimplifiedLayerNormalization{.domain = kMicrosoftDomain,
                                                               .name = "SkipSimplifiedLayerNormalization",
                                                               .attributes = kSkipNormAttributes,
                                                               .types = kSkipNormTypes,
                                                               .inputs = kSkipNormInputs,
                                                               .outputs = kSkipNormOutputs,
                                                               .infer = infer_skip_norm};

constinit const OperatorSpec kGatedRMSNorm{.domain = kMicrosoftDomain,
                                           .name = "GatedRMSNorm",
                                           .attributes = kGatedRMSNormAttributes,
                                           .types = kActivationTypes,
                                           .inputs = kGatedRMSNormInputs,
                                           .outputs = kGatedRMSNormOutputs,
                                           .infer = infer_gated_rms_norm};

constinit const OperatorSpec kGatedAdd{.domain = kMicrosoftDomain,
                                       .name = "GatedAdd",
                                       .types = kActivationTypes,
                                       .inputs = kGatedAddInputs,
                                       .outputs = kGatedAddOutputs,
                                       .infer = infer_gated_add};

constinit const OperatorSpec kMoE{.domain = kMicrosoftDomain,
                                  .name = "MoE",
                                  .attributes = kMoEAttributes,
                                  .types = kActivationTypes,
                                  .inputs = kMoEInputs,
                                  .outputs = kMoEOutputs,
                                  .infer = infer_moe};

}  // namespace sluice

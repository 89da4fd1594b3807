// Depthwise causal convolution with carried state. Notation: batch B, tokens N or L, channels C, kernel K.
#include "base/error.h"
#include "opset/operators.h"
#include "opset/shape_context.h"
#include "opset/type_sets.h"

namespace sluice {
namespace {

// (K - 1) * dilation.
Extent state_length(const ShapeContext& context, const Extent& kernel) {
  if (kernel.value < 0) return extent("conv_state_length");
  if (kernel.value == 0) fail("input 1: the kernel has no taps");
  return multiply(extent(kernel.value - 1), extent(context.integer("dilation")));
}

void infer_causal_conv(ShapeContext& context) {
  if (context.integer("ndim") != 1 || context.integer("channels_last") != 0 || context.integer("state_window") != 0) {
    fail("only ndim 1, channels_last 0 and state_window 0 are described here");
  }
  const Extents& input = require_rank(context, 0, 3);
  const Extents& weight = require_rank(context, 1, 3);
  require_shape(context, 1, {input[1], extent(1), weight[2]});
  require_shape(context, 2, {input[1]});
  const Extents state{input[0], input[1], state_length(context, weight[2])};
  require_shape(context, 3, state);
  context.set_output_shape(0, input);
  context.set_output_shape(1, state);
  if (context.has_output(2)) {
    context.set_output_shape(2, {input[0], extent(context.integer("state_update_capacity")), input[1]});
  }
}

void infer_varlen_causal_conv(ShapeContext& context) {
  const Extents& input = require_rank(context, 0, 2);
  const Extents& weight = require_rank(context, 1, 3);
  require_shape(context, 1, {input[1], extent(1), weight[2]});
  require_rank(context, 2, 1);
  require_shape(context, 3, {input[1]});
  const Extents& past = require_rank(context, 4, 3);
  const Extents state{past[0], input[1], state_length(context, weight[2])};
  require_shape(context, 4, state);
  require_shape(context, 5, {past[0]});
  context.set_output_shape(0, input);
  context.set_output_shape(1, state);
  const std::int64_t capacity = context.integer("state_update_capacity");
  if (capacity < 0 || capacity > 8) fail("attribute state_update_capacity is {}, expected 0..8", capacity);
  if (context.has_output(2)) context.set_output_shape(2, {past[0], extent(capacity), input[1]});
}

constexpr AttributeSpec kCausalConvAttributes[] = {
    text_attribute("activation", "none"),
    int_attribute("ndim", 1),
    int_attribute("dilation", 1),
    int_attribute("channels_last", 0),
    int_attribute("state_channels_last", -1),
    int_attribute("state_length", 0),
    int_attribute("input_channels", 0),
    int_attribute("input_channel_offset", 0),
    int_attribute("state_window", 0),
    int_attribute("state_update_capacity", 0),
};
constexpr TypeVariable kCausalConvTypes[] = {{"T", kActivations}};
constexpr PortSpec kCausalConvInputs[] = {
    {"input", "T"}, {"weight", "T"}, {"bias", "T", Presence::optional}, {"past_state", "T", Presence::optional}};
constexpr PortSpec kCausalConvOutputs[] = {
    {"output", "T"}, {"present_state", "T"}, {"state_update", "T", Presence::optional}};

constexpr AttributeSpec kVarlenConvAttributes[] = {
    text_attribute("activation", "none"), int_attribute("dilation", 1),     int_attribute("state_update_capacity", 0),
    int_attribute("group_size", 1),       int_attribute("delta_offset", 0),
};
constexpr TypeVariable kVarlenConvTypes[] = {{"T", kActivations}, {"M", kI32}};
constexpr PortSpec kVarlenConvInputs[] = {
    {"input", "T"},
    {"weight", "T"},
    {"cumulative_sequence_length", "M"},
    {"bias", "T", Presence::optional},
    {"initial_state", "T"},
    {"capture_count", "M", Presence::optional},
    {"kernel_delta", "T", Presence::optional},
    {"previous_mask", "T", Presence::optional},
};
constexpr PortSpec kVarlenConvOutputs[] = {{"output", "T", Presence::required, 2},
                                           {"final_state", "T", Presence::required, 3},
                                           {"state_update", "T", Presence::optional}};

}  // namespace

constinit const OperatorSpec kCausalConvWithState{.domain = kMicrosoftDomain,
                                                  .name = "CausalConvWithState",
                                                  .attributes = kCausalConvAttributes,
                                                  .types = kCausalConvTypes,
                                                  .inputs = kCausalConvInputs,
                                                  .outputs = kCausalConvOutputs,
                                                  .infer = infer_causal_conv};

constinit const OperatorSpec kVarlenCausalConvWithState{.domain = kMicrosoftDomain,
                                                        .name = "VarlenCausalConvWithState",
                                                        .attributes = kVarlenConvAttributes,
                                                        .types = kVarlenConvTypes,
                                                        .inputs = kVarlenConvInputs,
                                                        .outputs = kVarlenConvOutputs,
                                                        .infer = infer_varlen_causal_conv};

}  // namespace sluice

#include "graph/gated_delta_net.h"

#include <cmath>

#include "graph/activation.h"
#include "graph/norm.h"
#include "graph/ports.h"
#include "graph/recurrence.h"
#include "opset/operators.h"

namespace sluice {
namespace {

// The convolution's own activation is silu; any other follows it.
std::vector<Attribute> conv_attributes(const DecoderContext& c) {
  std::vector<Attribute> attributes{
      {"activation", std::string(c.config.activation == Activation::silu ? "silu" : "none")}};
  if (c.plan.state_update_capacity != 0) {
    attributes.push_back({"state_update_capacity", c.plan.state_update_capacity});
  }
  return attributes;
}

// [batch_size, sequence_length, channels] -> the same; CausalConvWithState wants the channels in front.
Value dense_conv(DecoderContext& c, Value qkv, Value weight, Value past) {
  const Value channels_first = c.g.transpose("channels_first", c.to_rows("rows", qkv), {0, 2, 1});
  std::vector<Attribute> attributes = conv_attributes(c);
  attributes.push_back({"ndim", std::int64_t{1}});
  const std::vector<Value> outputs =
      c.g.emit(kCausalConvWithState, "", {channels_first, weight, {}, past}, std::move(attributes), {true, true});
  set_present(c, past, outputs[1]);
  return c.g.transpose("channels_last", outputs[0], {0, 2, 1});
}

// [tokens, channels] -> the same.
Value packed_conv(DecoderContext& c, std::int64_t layer, Value qkv, Value weight, Value past) {
  const bool capture = c.plan.state_update_capacity != 0;
  const std::vector<Value> outputs =
      c.g.emit(kVarlenCausalConvWithState, "", {qkv, weight, c.in.cu_seqlens, {}, past, c.in.capture_count},
               conv_attributes(c), {true, true, capture});
  set_present(c, past, outputs[1]);
  if (capture) add_state_update(c, layer, "conv_value", outputs[2]);
  return outputs[0];
}

Value convolve(DecoderContext& c, std::int64_t layer, Value qkv) {
  const auto whole = c.g.scope("conv");
  const Value weight = c.vector(layer_weight(layer, "linear.conv"), {c.config.conv_dim(), 1, c.config.conv_kernel});
  const Value past = c.states[static_cast<std::size_t>(layer)].conv;
  const Value out = c.dense() ? dense_conv(c, qkv, weight, past) : packed_conv(c, layer, qkv, weight, past);
  return c.config.activation == Activation::silu ? out : activate(c, "activation", out);
}

}  // namespace

Value gated_delta_net(DecoderContext& c, std::int64_t layer, Value x) {
  const auto whole = c.g.scope("linear");
  const HybridConfig& config = c.config;
  const auto project = [&](std::string_view name, std::int64_t rows) {
    return c.linear(name, x, layer_weight(layer, "linear." + std::string(name)), rows);
  };
  const Value qkv = project("qkv", config.conv_dim());
  const Value z = project("z", config.value_dim());
  const Value b = project("b", config.linear_v_heads);
  const Value a = project("a", config.linear_v_heads);
  const std::vector<Value> mixed =
      c.g.split("qkv", convolve(c, layer, qkv), {config.key_dim(), config.key_dim(), config.value_dim()});
  const Value recalled = recur(c, layer, {mixed[0], mixed[1], mixed[2], a, b});  // [tokens, value_dim]

  std::vector<Attribute> attributes{{"epsilon", static_cast<float>(config.rms_eps)}};
  if (config.output_gate == OutputGateActivation::sigmoid) attributes.push_back({"activation", std::string("sigmoid")});
  const Value weight = c.vector(layer_weight(layer, "linear.norm"), {config.linear_v_dim});
  const Value normed = c.g.emit(kGatedRMSNorm, "norm", {recalled, weight, z}, std::move(attributes));
  return c.linear("out", normed, layer_weight(layer, "linear.out"), config.hidden);
}

}  // namespace sluice

#include "graph/recurrence.h"

#include <cmath>

#include "graph/norm.h"
#include "graph/ports.h"
#include "opset/operators.h"

namespace sluice {
namespace {

struct GateValues {
  Value decay;  // dense [batch_size, sequence_length, Hv], packed [tokens, Hv]
  Value beta;   // the same
};

// log decay = -exp(A_log) * softplus(a + dt_bias), beta = sigmoid(b): in f32, rounded to the activation dtype.
GateValues effective_gates(DecoderContext& c, std::int64_t layer, Value a, Value b) {
  const std::int64_t heads = c.config.linear_v_heads;
  const Value dt_bias = c.vector_f32(layer_weight(layer, "linear.dt_bias"), {heads});
  const Value neg_exp = c.vector_f32(layer_weight(layer, "linear.A_log"), {heads}, {Transform::neg_exp});
  const std::vector<Value> gates = c.g.emit(kLinearAttentionGate, "", {a, dt_bias, neg_exp, b}, {}, {true, true});
  return {c.to_rows("decay_rows", gates[0]), c.to_rows("beta_rows", gates[1])};
}

GateValues in_f32(DecoderContext& c, const GateValues& gates) {
  return {c.g.cast("decay_f32", gates.decay, DType::f32), c.g.cast("beta_f32", gates.beta, DType::f32)};
}

// [.., heads*dim] -> [.., heads, dim]
Value to_heads(DecoderContext& c, std::string_view label, Value x, std::int64_t heads, std::int64_t dim) {
  return c.dense() ? c.g.reshape(label, x, {0, 0, heads, dim}) : c.g.reshape(label, x, {0, heads, dim});
}

struct Heads {
  Value query, key, value;  // [.., heads, dim]
};

Heads split_heads(DecoderContext& c, const RecurrenceInputs& inputs) {
  const HybridConfig& config = c.config;
  return {to_heads(c, "query_heads", inputs.query, config.linear_k_heads, config.linear_k_dim),
          to_heads(c, "key_heads", inputs.key, config.linear_k_heads, config.linear_k_dim),
          to_heads(c, "value_heads", inputs.value, config.linear_v_heads, config.linear_v_dim)};
}

// Keys of unit length, queries of length 1/sqrt(dk): the query scale of attention is in the norm's constant.
void normalise(DecoderContext& c, Heads& heads) {
  heads.query = l2_norm(c, "query_norm", heads.query, 1.0 / std::sqrt(static_cast<double>(c.config.linear_k_dim)));
  heads.key = l2_norm(c, "key_norm", heads.key, 1.0);
}

// [.., heads, dv] -> [tokens, value_dim]
Value merge_heads(DecoderContext& c, Value out) {
  const std::int64_t width = c.config.value_dim();
  return c.dense() ? c.g.reshape("tokens", out, {-1, width}) : c.g.reshape("tokens", out, {0, width});
}

Value linear_attention(DecoderContext& c, std::int64_t layer, const RecurrenceInputs& inputs) {
  const HybridConfig& config = c.config;
  Heads heads = split_heads(c, inputs);
  normalise(c, heads);
  const Value query = c.g.reshape("query_rows", heads.query, {0, 0, config.key_dim()});
  const Value key = c.g.reshape("key_rows", heads.key, {0, 0, config.key_dim()});
  const GateValues gates = effective_gates(c, layer, inputs.a, inputs.b);
  const Value past = c.states[static_cast<std::size_t>(layer)].recurrent;
  const std::vector<Value> outputs =
      c.g.emit(kLinearAttention, "", {query, key, inputs.value, past, gates.decay, gates.beta},
               {{"kv_num_heads", config.linear_v_heads},
                {"q_num_heads", config.linear_k_heads},
                {"scale", 1.0f},
                {"update_rule", std::string("gated_delta")}},
               {true, true});
  set_present(c, past, outputs[1]);
  return c.to_tokens("tokens", outputs[0]);
}

std::vector<Attribute> delta_net_attributes(const ExportPlan& plan) {
  const bool raw = plan.gates == Gates::raw;
  std::vector<Attribute> attributes{{"beta_activation", std::string(raw ? "sigmoid" : "none")},
                                    {"chunk_size", plan.chunk_size},
                                    {"gate_activation", std::string(raw ? "qwen" : "none")},
                                    {"qk_l2_norm", std::int64_t{raw ? 1 : 0}},
                                    {"scale", raw ? 0.0f : 1.0f},  // 0: 1/sqrt(dk)
                                    {"update_rule", std::string("gated_delta")}};
  if (plan.state_update_capacity != 0) attributes.push_back({"state_update_capacity", plan.state_update_capacity});
  return attributes;
}

// Raw gates: the operator normalises q and k and activates the gates itself. Effective ones: all that is done before
// it.
Value delta_net(DecoderContext& c, std::int64_t layer, const RecurrenceInputs& inputs) {
  const std::int64_t v_heads = c.config.linear_v_heads;
  const Value past = c.states[static_cast<std::size_t>(layer)].recurrent;
  Heads heads = split_heads(c, inputs);
  std::vector<Value> ports;
  if (c.plan.gates == Gates::raw) {
    const GateValues gates = in_f32(c, {c.to_rows("decay_rows", inputs.a), c.to_rows("beta_rows", inputs.b)});
    ports = {heads.query,
             heads.key,
             heads.value,
             c.in.cu_seqlens,
             gates.decay,
             gates.beta,
             past,
             c.vector_f32(layer_weight(layer, "linear.A_log"), {v_heads}),
             c.vector_f32(layer_weight(layer, "linear.dt_bias"), {v_heads}),
             c.in.capture_count,
             c.in.state_update_active};
  } else {
    normalise(c, heads);
    const GateValues gates = in_f32(c, effective_gates(c, layer, inputs.a, inputs.b));
    ports = {heads.query, heads.key, heads.value, c.in.cu_seqlens, gates.decay, gates.beta, past};
  }
  const bool capture = c.plan.state_update_capacity != 0;
  const std::vector<Value> outputs =
      c.g.emit(kGatedDeltaNet, "", std::move(ports), delta_net_attributes(c.plan), {true, true, capture});
  set_present(c, past, outputs[1]);
  if (capture) add_state_update(c, layer, "recurrent_capsule", outputs[2]);
  return merge_heads(c, outputs[0]);
}

Value varlen_linear_attention(DecoderContext& c, std::int64_t layer, const RecurrenceInputs& inputs) {
  const Value past = c.states[static_cast<std::size_t>(layer)].recurrent;
  Heads heads = split_heads(c, inputs);
  normalise(c, heads);
  const GateValues gates = in_f32(c, effective_gates(c, layer, inputs.a, inputs.b));
  const std::vector<Value> outputs = c.g.emit(
      kVarlenLinearAttention, "", {heads.query, heads.key, heads.value, c.in.cu_seqlens, past, gates.decay, gates.beta},
      {{"beta_activation", std::string("none")},
       {"decay_activation", std::string("none")},
       {"max_checkpoints", std::int64_t{0}},
       {"scale", 1.0f},
       {"update_rule", std::string("gated_delta")}},
      {true, true});
  set_present(c, past, outputs[1]);
  return merge_heads(c, outputs[0]);
}

}  // namespace

Value recur(DecoderContext& c, std::int64_t layer, const RecurrenceInputs& inputs) {
  const auto whole = c.g.scope("recurrence");
  switch (c.plan.recurrence) {
    case Recurrence::linear_attention:
      return linear_attention(c, layer, inputs);
    case Recurrence::gated_delta_net:
      return delta_net(c, layer, inputs);
    case Recurrence::varlen_linear_attention:
      break;
  }
  return varlen_linear_attention(c, layer, inputs);
}

}  // namespace sluice

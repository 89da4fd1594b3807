// The recurrent operators. Notation: tokens N, batch B, heads Hq (query), Hk (key), Hv (value and state), sizes dk, dv.
#include "base/error.h"
#include "opset/operators.h"
#include "opset/shape_context.h"
#include "opset/type_sets.h"

namespace sluice {
namespace {

// The larger of two head counts, where known: an operator answers for every query head and every value head.
Extent larger(const Extent& a, const Extent& b) {
  if (a.value < 0 || b.value < 0) return a == b ? a : (a.value < 0 ? a : b);
  return a.value > b.value ? a : b;
}

std::int64_t checked_capacity(const ShapeContext& context) {
  const std::int64_t capacity = context.integer("state_update_capacity");
  if (capacity < 0 || capacity > 8) fail("attribute state_update_capacity is {}, expected 0..8", capacity);
  return capacity;
}

// [.., H] of a gate: scalar per head, or one value per key channel.
void check_gate(const ShapeContext& context, std::size_t index, const Extents& leading, const Extent& heads,
                const Extent& key_dim, bool per_channel_allowed) {
  if (!context.has_input(index)) return;
  Extents expected = leading;
  expected.push_back(heads);
  if (per_channel_allowed && context.input_shape(index).size() == expected.size() + 1) expected.push_back(key_dim);
  require_shape(context, index, expected);
}

struct DeltaNetDims {
  Extents leading;  // [N] or [B, S]
  Extent k_heads, v_heads, k_dim, v_dim, batch;
};

// q, k and v in one tensor [N, 2*Hk*dk + Hv*dv] or [B, S, ..]: heads and sizes come from the state, which says Hv, dv and dk.
DeltaNetDims packed_dims(const ShapeContext& context, const Extents& query) {
  const Extents& state = require_rank(context, 6, 4);
  DeltaNetDims dims{{query.begin(), query.end() - 1}, extent("k_heads"), state[1], state[3], state[2], state[0]};
  const Extent values = multiply(dims.v_heads, dims.v_dim);
  if (query.back().value >= 0 && values.value >= 0 && dims.k_dim.value > 0) {
    const std::int64_t keys = query.back().value - values.value;
    if (keys <= 0 || keys % (2 * dims.k_dim.value) != 0) {
      fail("input 0 has shape {}: its last extent holds no query and key heads of {} beside value heads {} of {}",
           to_string(query), dims.k_dim.value, dims.v_heads.value, dims.v_dim.value);
    }
    dims.k_heads = extent(keys / (2 * dims.k_dim.value));
  }
  return dims;
}

DeltaNetDims delta_net_dims(const ShapeContext& context) {
  const Extents& query = context.input_shape(0);
  const bool split = context.has_input(1) && context.has_input(2);
  if (context.has_input(1) != context.has_input(2)) fail("inputs 1 and 2 come together or not at all");
  if (!split) {
    if ((query.size() != 2 && query.size() != 3) || !context.has_input(6)) {
      fail("input 0 has shape {}: without key and value it must be [.., 2*Hk*dk + Hv*dv], with initial_state",
           to_string(query));
    }
    return packed_dims(context, query);
  }
  const Extents& value = context.input_shape(2);
  if (query.size() != value.size() || (query.size() != 3 && query.size() != 4)) {
    fail("inputs 0 and 2 have shapes {} and {}: expected 3 axes each, or 4", to_string(query), to_string(value));
  }
  require_shape(context, 1, query);
  DeltaNetDims dims{{query.begin(), query.end() - 2},
                    query[query.size() - 2],
                    value[value.size() - 2],
                    query.back(),
                    value.back(),
                    extent("batch")};
  Extents expected_value = dims.leading;
  expected_value.insert(expected_value.end(), {dims.v_heads, dims.v_dim});
  require_shape(context, 2, expected_value);
  return dims;
}

// Where the batch extent is written: capture_count, rank 4, initial_state.
Extent delta_net_batch(const ShapeContext& context, const DeltaNetDims& dims) {
  if (context.has_input(9)) return require_rank(context, 9, 1)[0];
  if (dims.leading.size() == 2) return dims.leading[0];
  if (context.has_input(6)) return require_rank(context, 6, 4)[0];
  if (context.has_input(3)) {
    const Extent& offsets = require_rank(context, 3, 1)[0];
    if (offsets.value > 0) return extent(offsets.value - 1);
  }
  return extent("batch");
}

void infer_gated_delta_net(ShapeContext& context) {
  DeltaNetDims dims = delta_net_dims(context);
  dims.batch = delta_net_batch(context, dims);
  check_gate(context, 4, dims.leading, dims.v_heads, dims.k_dim, true);
  check_gate(context, 5, dims.leading, dims.v_heads, dims.k_dim, false);
  const Extents state{dims.batch, dims.v_heads, dims.v_dim, dims.k_dim};
  require_shape(context, 6, state);
  require_shape(context, 7, {dims.v_heads});
  require_shape(context, 10, {extent(1)});

  Extents output = dims.leading;
  output.insert(output.end(), {larger(dims.k_heads, dims.v_heads), dims.v_dim});
  context.set_output_shape(0, output);
  if (context.has_output(1)) context.set_output_shape(1, state);
  const std::int64_t capacity = checked_capacity(context);
  if (!context.has_output(2)) return;
  const bool per_channel = context.has_input(4) && context.input_shape(4).size() == dims.leading.size() + 2;
  const Extent decay = per_channel ? multiply(dims.v_heads, dims.k_dim) : dims.v_heads;
  const Extent slot = add(add(decay, multiply(dims.k_heads, dims.k_dim)), multiply(dims.v_heads, dims.v_dim));
  context.set_output_shape(2, {dims.batch, multiply(extent(capacity), slot)});
}

void infer_varlen_linear_attention(ShapeContext& context) {
  const Extents& query = require_rank(context, 0, 3);
  const Extents& key = require_rank(context, 1, 3);
  const Extents& value = require_rank(context, 2, 3);
  require_shape(context, 1, {query[0], key[1], query[2]});
  require_shape(context, 2, {query[0], value[1], value[2]});
  const Extents& past = require_rank(context, 4, 4);
  const Extents state{past[0], value[1], value[2], query[2]};
  require_shape(context, 4, state);
  check_gate(context, 5, {query[0]}, value[1], query[2], true);
  if (context.has_input(6)) {
    const Extents& beta = require_rank(context, 6, 2);
    if (beta[1] != extent(1)) require_shape(context, 6, {query[0], value[1]});
  }
  context.set_output_shape(0, {query[0], larger(query[1], value[1]), value[2]});
  context.set_output_shape(1, state);
  if (context.has_output(2)) {
    Extents checkpoints{extent(context.integer("max_checkpoints"))};
    checkpoints.insert(checkpoints.end(), state.begin(), state.end());
    context.set_output_shape(2, checkpoints);
  }
}

Extent divided(const ShapeContext& context, std::size_t index, std::string_view attribute) {
  const Extent& width = context.input_shape(index).back();
  const std::int64_t heads = context.integer(attribute);
  const auto quotient = heads > 0 ? divide(width, extent(heads)) : std::nullopt;
  if (!quotient)
    fail("input {} has last extent {}, not a multiple of {} {}", index, to_string(width), attribute, heads);
  return *quotient;
}

void infer_linear_attention(ShapeContext& context) {
  const Extents& query = require_rank(context, 0, 3);
  const Extents& value = require_rank(context, 2, 3);
  const Extent k_dim = divided(context, 0, "q_num_heads");
  const Extent v_dim = divided(context, 2, "kv_num_heads");
  const Extent v_heads = extent(context.integer("kv_num_heads"));
  require_shape(context, 1, {query[0], query[1], require_rank(context, 1, 3)[2]});
  require_shape(context, 2, {query[0], query[1], value[2]});
  const Extents state{query[0], v_heads, k_dim, v_dim};
  require_shape(context, 3, state);
  context.set_output_shape(
      0, {query[0], query[1], multiply(larger(extent(context.integer("q_num_heads")), v_heads), v_dim)});
  context.set_output_shape(1, state);
}

void infer_linear_attention_gate(ShapeContext& context) {
  const Extents& a = context.input_shape(0);
  if (a.empty()) fail("input 0 is a scalar, expected [.., heads]");
  require_shape(context, 1, {a.back()});
  require_shape(context, 2, {a.back()});
  require_shape(context, 3, a);
  context.set_output_shape(0, a);
  if (context.has_output(1)) context.set_output_shape(1, a);
}

constexpr AttributeSpec kGatedDeltaNetAttributes[] = {
    text_attribute("update_rule", "gated_delta"),
    float_attribute("scale", 0.0f),
    text_attribute("gate_activation", "none"),
    text_attribute("beta_activation", "none"),
    float_attribute("gate_lower_bound", -5.0f),
    int_attribute("qk_l2_norm", 0),
    int_attribute("chunk_size", 64),
    int_attribute("state_update_capacity", 0),
};
constexpr TypeVariable kGatedDeltaNetTypes[] = {{"T", kActivations}, {"TG", kActivations}, {"TS", kF32}, {"TI", kI32}};
constexpr PortSpec kGatedDeltaNetInputs[] = {
    {"query", "T"},
    {"key", "T", Presence::optional},
    {"value", "T", Presence::optional},
    {"cu_seqlens", "TI", Presence::optional},
    {"decay", "TG", Presence::optional},
    {"beta", "TG", Presence::optional},
    {"initial_state", "TS", Presence::optional},
    {"a_log", "TS", Presence::optional},
    {"dt_bias", "TS", Presence::optional},
    {"capture_count", "TI", Presence::optional},
    {"state_update_active", "TI", Presence::optional},
};
constexpr PortSpec kGatedDeltaNetOutputs[] = {
    {"output", "T"}, {"final_state", "TS", Presence::optional}, {"state_update", "TS", Presence::optional}};

constexpr AttributeSpec kVarlenLinearAttentionAttributes[] = {
    text_attribute("update_rule", "gated_delta"), float_attribute("scale", 0.0f),
    text_attribute("decay_activation", "none"),   text_attribute("beta_activation", "none"),
    int_attribute("max_checkpoints", 0),
};
constexpr TypeVariable kVarlenLinearAttentionTypes[] = {
    {"T", kActivations}, {"TG", kActivations}, {"TS", kF32}, {"TI", kI32}};
constexpr PortSpec kVarlenLinearAttentionInputs[] = {
    {"query", "T"},
    {"key", "T"},
    {"value", "T"},
    {"cumulative_sequence_length", "TI"},
    {"initial_state", "TS"},
    {"decay", "TG", Presence::optional},
    {"beta", "TG", Presence::optional},
    {"a_log", "TS", Presence::optional},
    {"dt_bias", "TS", Presence::optional},
};
constexpr PortSpec kVarlenLinearAttentionOutputs[] = {{"output", "T", Presence::required, 3},
                                                      {"final_state", "TS", Presence::required, 4},
                                                      {"checkpoints", "TS", Presence::optional}};

constexpr AttributeSpec kLinearAttentionAttributes[] = {
    required_attribute("q_num_heads", AttributeKind::integer),
    required_attribute("kv_num_heads", AttributeKind::integer),
    text_attribute("update_rule", "gated_delta"),
    float_attribute("scale", 0.0f),
    int_attribute("chunk_size", 64),
    int_attribute("state_window", 0),
};
constexpr TypeVariable kLinearAttentionTypes[] = {{"T", kActivations}, {"S", kActivations}};
constexpr PortSpec kLinearAttentionInputs[] = {{"query", "T"},
                                               {"key", "T"},
                                               {"value", "T"},
                                               {"past_state", "S", Presence::optional},
                                               {"decay", "T", Presence::optional},
                                               {"beta", "T", Presence::optional}};
constexpr PortSpec kLinearAttentionOutputs[] = {{"output", "T"}, {"present_state", "S"}};

constexpr TypeVariable kLinearAttentionGateTypes[] = {{"T", kActivations}, {"TF", kF32}};
constexpr PortSpec kLinearAttentionGateInputs[] = {
    {"a", "T"}, {"dt_bias", "TF"}, {"decay_scale", "TF"}, {"b", "T", Presence::optional}};
constexpr PortSpec kLinearAttentionGateOutputs[] = {{"decay", "T"}, {"beta", "T", Presence::optional}};

}  // namespace

constinit const OperatorSpec kGatedDeltaNet{.domain = kMicrosoftDomain,
                                            .name = "GatedDeltaNet",
                                            .attributes = kGatedDeltaNetAttributes,
                                            .types = kGatedDeltaNetTypes,
                                            .inputs = kGatedDeltaNetInputs,
                                            .outputs = kGatedDeltaNetOutputs,
                                            .infer = infer_gated_delta_net};

constinit const OperatorSpec kVarlenLinearAttention{.domain = kMicrosoftDomain,
                                                    .name = "VarlenLinearAttention",
                                                    .attributes = kVarlenLinearAttentionAttributes,
                                                    .types = kVarlenLinearAttentionTypes,
                                                    .inputs = kVarlenLinearAttentionInputs,
                                                    .outputs = kVarlenLinearAttentionOutputs,
                                                    .infer = infer_varlen_linear_attention};

constinit const OperatorSpec kLinearAttention{.domain = kMicrosoftDomain,
                                              .name = "LinearAttention",
                                              .attributes = kLinearAttentionAttributes,
                                              .types = kLinearAttentionTypes,
                                              .inputs = kLinearAttentionInputs,
                                              .outputs = kLinearAttentionOutputs,
                                              .infer = infer_linear_attention};

constinit const OperatorSpec kLinearAttentionGate{.domain = kMicrosoftDomain,
                                                  .name = "LinearAttentionGate",
                                                  .types = kLinearAttentionGateTypes,
                                                  .inputs = kLinearAttentionGateInputs,
                                                  .outputs = kLinearAttentionGateOutputs,
                                                  .infer = infer_linear_attention_gate};

}  // namespace sluice

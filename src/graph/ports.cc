#include "graph/ports.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "opset/operators.h"

namespace sluice {
namespace {

const Extent kBatch = extent("batch_size");

Value add_port(DecoderContext& c, std::string name, DType dtype, Extents shape) {
  c.info.inputs.push_back({name, dtype, shape});
  return c.g.graph().add_input(std::move(name), dtype, std::move(shape));
}

struct StateForm {
  StateKind kind;
  std::string_view name;  // "key"
  DType dtype;
  Extents shape;
  Value LayerStates::* slot;
};

// Caches and states in the order they are declared: all keys, all values, all convolutions, all recurrences.
std::vector<StateForm> state_forms(const DecoderContext& c) {
  const HybridConfig& config = c.config;
  const Extent kv_heads = extent(config.kv_heads);
  const Extent head_dim = extent(config.head_dim);
  const Extents cache = c.dense() ? Extents{kBatch, kv_heads, extent("past_sequence_length"), head_dim}
                                  : Extents{extent("num_blocks"), extent("block_size"), kv_heads, head_dim};
  const StateKind cache_kind = c.dense() ? StateKind::growing_kv : StateKind::paged_kv;
  const Extents conv{kBatch, extent(config.conv_dim()), extent(config.conv_kernel - 1)};
  Extents recurrent{kBatch, extent(config.linear_v_heads), extent(config.linear_k_dim), extent(config.linear_v_dim)};
  if (c.plan.value_major_state) std::swap(recurrent[2], recurrent[3]);
  return {{cache_kind, "key", c.plan.activation, cache, &LayerStates::key},
          {cache_kind, "value", c.plan.activation, cache, &LayerStates::value},
          {StateKind::conv, "conv_state", c.plan.conv_state, conv, &LayerStates::conv},
          {StateKind::recurrent, "recurrent_state", c.plan.recurrent_state, recurrent, &LayerStates::recurrent}};
}

void add_states(DecoderContext& c) {
  c.states.resize(static_cast<std::size_t>(c.plan.layers));
  for (const StateForm& form : state_forms(c)) {
    const bool attention = form.kind == StateKind::growing_kv || form.kind == StateKind::paged_kv;
    for (std::int64_t layer = 0; layer < c.plan.layers; ++layer) {
      if (c.config.is_linear(layer) == attention) continue;
      const std::string past = fmt::format("past_key_values.{}.{}", layer, form.name);
      c.states[static_cast<std::size_t>(layer)].*form.slot = c.g.graph().add_input(past, form.dtype, form.shape);
      c.info.states.push_back(
          {form.kind, layer, form.dtype, form.shape, past, fmt::format("present.{}.{}", layer, form.name)});
    }
  }
}

bool has_layer(const DecoderContext& c, LayerKind kind) {
  const auto end = c.config.layer_kinds.begin() + c.plan.layers;
  return std::find(c.config.layer_kinds.begin(), end, kind) != end;
}

// seqlens_k = sum(attention_mask) - 1 of each row, total_length = width of the mask: what GroupQueryAttention asks for.
void derive_lengths(DecoderContext& c, Value mask) {
  const auto whole = c.g.scope("lengths");
  const Value length = c.g.emit(kReduceSum, "", {mask, c.g.constant({1})}, {{"keepdims", std::int64_t{0}}});
  const Value last = c.g.emit(kSub, "", {length, c.g.scalar(1)});
  c.in.seqlens_k = c.g.cast("seqlens_k", last, DType::i32);
  const Value width = c.g.emit(kGather, "width", {c.g.emit(kShape, "", {mask}), c.g.scalar(1)});
  c.in.total_length = c.g.cast("total_length", width, DType::i32);
}

void add_dense_inputs(DecoderContext& c) {
  const Extent length = extent("sequence_length");
  c.in.input_ids = add_port(c, "input_ids", DType::i64, {kBatch, length});
  if (has_layer(c, LayerKind::full_attention)) {
    const Value mask = add_port(c, "attention_mask", DType::i64, {kBatch, extent("total_sequence_length")});
    c.in.position_ids = add_port(c, "position_ids", DType::i64, {kBatch, length});
    derive_lengths(c, mask);
  }
  add_states(c);
  const auto whole = c.g.scope("batch");
  c.in.batch_shape =
      c.g.emit(kConcat, "", {c.g.emit(kShape, "", {c.in.input_ids}), c.g.constant({-1})}, {{"axis", std::int64_t{0}}});
}

void add_packed_inputs(DecoderContext& c) {
  const Extent tokens = extent("num_tokens");
  const bool attention = has_layer(c, LayerKind::full_attention);
  const bool planes = c.plan.rope == RopeForm::mrotary;
  c.in.input_ids = add_port(c, "input_ids", DType::i64, {tokens});
  if (attention) {
    const Value ids = add_port(c, "position_ids", DType::i64, planes ? Extents{extent(3), tokens} : Extents{tokens});
    c.in.position_ids = planes ? c.g.reshape("positions", ids, {3, 1, -1}) : c.g.reshape("positions", ids, {1, -1});
  }
  add_states(c);
  if (attention) c.in.block_table = add_port(c, "block_table", DType::i32, {kBatch, extent("max_num_blocks")});
  c.in.cu_seqlens = add_port(c, "cumulative_sequence_lengths", DType::i32, {extent("batch_size + 1")});
  if (attention) {
    c.in.past_lengths = add_port(c, "past_sequence_lengths", DType::i32, {kBatch});
    c.in.attention_metadata = add_port(c, "attention_metadata", DType::i32, {extent(3)});
  }
  if (c.plan.prune_lm_head) c.in.logits_indices = add_port(c, "logits_indices", DType::i32, {extent("num_logits")});
  if (c.plan.state_update_capacity != 0) {
    c.in.capture_count = add_port(c, "state_update_capture_count", DType::i32, {kBatch});
    c.in.state_update_active = add_port(c, "state_update_active", DType::i32, {extent(1)});
  }
}

void add_port_output(DecoderContext& c, Value value, std::string name) {
  c.g.graph().rename(value, name);
  c.info.outputs.push_back({std::move(name), c.g.dtype(value), c.g.shape(value)});
}

}  // namespace

void add_inputs(DecoderContext& c) { c.dense() ? add_dense_inputs(c) : add_packed_inputs(c); }

void set_present(DecoderContext& c, Value past, Value present) {
  const std::string& name = c.g.graph().info(past).name;
  const auto state = std::ranges::find(c.info.states, name, &StateInfo::input);
  SLUICE_CHECK(state != c.info.states.end() && state->dtype == c.g.dtype(present));
  c.g.graph().rename(present, state->output);
}

void add_state_update(DecoderContext& c, std::int64_t layer, std::string_view name, Value update) {
  add_port_output(c, update, fmt::format("state_update.{}.{}", layer, name));
}

void set_logits(DecoderContext& c, Value logits) { add_port_output(c, logits, "logits"); }

void add_outputs(DecoderContext& c) {
  Graph& graph = c.g.graph();
  // Logits were computed last and come first; each kind of state update follows by layer.
  std::vector<PortInfo> ordered;
  for (const std::string_view ending : {"logits", ".conv_value", ".recurrent_capsule"}) {
    std::ranges::copy_if(c.info.outputs, std::back_inserter(ordered),
                         [&](const PortInfo& port) { return port.name.ends_with(ending); });
  }
  c.info.outputs = std::move(ordered);
  graph.add_output(graph.find("logits").value());
  for (const StateInfo& state : c.info.states) graph.add_output(graph.find(state.output).value());
  for (const PortInfo& port : c.info.outputs) {
    if (port.name != "logits") graph.add_output(graph.find(port.name).value());
  }
}

}  // namespace sluice

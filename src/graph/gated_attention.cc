#include "graph/gated_attention.h"

#include <cmath>

#include "graph/norm.h"
#include "graph/ports.h"
#include "graph/rope.h"
#include "opset/operators.h"

namespace sluice {
namespace {

// What attention reads: dense [batch_size, sequence_length, heads*head_dim], packed [tokens, heads*head_dim].
struct Heads {
  Value query, key, value;
};

std::vector<Attribute> attention_attributes(const HybridConfig& config) {
  return {{"do_rotary", std::int64_t{0}},
          {"kv_num_heads", config.kv_heads},
          {"local_window_size", std::int64_t{-1}},
          {"num_heads", config.heads},
          {"rotary_interleaved", std::int64_t{0}},
          {"scale", static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)))},
          {"softcap", 0.0f}};
}

Value attend(DecoderContext& c, std::int64_t layer, const Heads& heads) {
  const LayerStates& past = c.states[static_cast<std::size_t>(layer)];
  std::vector<Value> inputs{heads.query, heads.key, heads.value, past.key, past.value};
  if (c.dense()) {
    inputs.insert(inputs.end(), {c.in.seqlens_k, c.in.total_length});
  } else {
    inputs.insert(inputs.end(), {c.in.cu_seqlens, c.in.past_lengths, c.in.block_table});
    inputs.resize(kPagedAttention.inputs.size() - 1);
    inputs.push_back(c.in.attention_metadata);
  }
  const std::vector<Value> outputs = c.g.emit(c.dense() ? kGroupQueryAttention : kPagedAttention, "", inputs,
                                              attention_attributes(c.config), {true, true, true});
  set_present(c, past.key, outputs[1]);
  set_present(c, past.value, outputs[2]);
  return c.to_tokens("tokens", outputs[0]);
}

}  // namespace

Value gated_attention(DecoderContext& c, std::int64_t layer, Value x) {
  const auto whole = c.g.scope("attn");
  const HybridConfig& config = c.config;
  const std::int64_t head_dim = config.head_dim;
  const std::int64_t width = config.heads * head_dim;
  const auto weight = [&](std::string_view name) { return layer_weight(layer, "attn." + std::string(name)); };
  const auto project = [&](std::string_view name, std::int64_t rows) {
    const std::string bias = config.attention_bias ? weight(std::string(name) + "_bias") : std::string();
    return c.linear(name, x, weight(name), rows, bias);
  };
  const auto normed_heads = [&](std::string_view name, Value heads) {
    return rms_norm(c, name, heads, c.vector(weight(name), {head_dim}), config.rms_eps);
  };

  // Rows of q_gate alternate per head: the query's head_dim, then the gate's.
  const Value q_gate = c.g.reshape("q_gate_heads", project("q_gate", 2 * width), {0, config.heads, 2 * head_dim});
  const std::vector<Value> halves = c.g.split("q_gate", q_gate, {head_dim, head_dim});
  const Value key = c.g.reshape("key_heads", project("k", config.kv_heads * head_dim), {0, config.kv_heads, head_dim});
  const Value value = project("v", config.kv_heads * head_dim);
  const Heads heads{rotate_heads(c, "q_rope", normed_heads("q_norm", halves[0])),
                    rotate_heads(c, "k_rope", normed_heads("k_norm", key)), c.to_rows("value_rows", value)};
  const Value attended = attend(c, layer, heads);

  const Value gate = c.g.emit(kSigmoid, "gate", {c.g.reshape("gate_tokens", halves[1], {0, width})});
  const Value gated = c.g.emit(kMul, "gate", {attended, gate});
  return c.linear("o", gated, weight("o"), config.hidden, config.attention_bias ? weight("o_bias") : std::string());
}

}  // namespace sluice

#include "architecture/weight_rows.h"

#include <fmt/format.h>

namespace sluice {
namespace {

constexpr std::string_view kQueryGate = "2 * num_attention_heads * head_dim, hidden_size";
constexpr std::string_view kKeyValue = "num_key_value_heads * head_dim, hidden_size";

WeightForm whole_form(SourceTensor source) {
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < source.shape.size(); ++i) rows *= source.shape[i];
  return {{std::move(source)}, {{0, 0, rows}}};
}

void add_attention_rows(LayerRows& rows) {
  const HybridConfig& c = rows.config();
  const std::int64_t query = c.heads * c.head_dim, key = c.kv_heads * c.head_dim;
  rows.whole("attn.q_gate", "self_attn.q_proj.weight", {2 * query, c.hidden}, kQueryGate);
  rows.whole("attn.k", "self_attn.k_proj.weight", {key, c.hidden}, kKeyValue);
  rows.whole("attn.v", "self_attn.v_proj.weight", {key, c.hidden}, kKeyValue);
  rows.whole("attn.o", "self_attn.o_proj.weight", {c.hidden, query}, "hidden_size, num_attention_heads * head_dim");
  if (c.attention_bias) {
    rows.whole("attn.q_gate_bias", "self_attn.q_proj.bias", {2 * query}, "2 * num_attention_heads * head_dim");
    rows.whole("attn.k_bias", "self_attn.k_proj.bias", {key}, "num_key_value_heads * head_dim");
    rows.whole("attn.v_bias", "self_attn.v_proj.bias", {key}, "num_key_value_heads * head_dim");
    rows.whole("attn.o_bias", "self_attn.o_proj.bias", {c.hidden}, "hidden_size");
  }
  rows.whole("attn.q_norm", "self_attn.q_norm.weight", {c.head_dim}, "head_dim", Elementwise::plus_one);
  rows.whole("attn.k_norm", "self_attn.k_norm.weight", {c.head_dim}, "head_dim", Elementwise::plus_one);
}

void add_mlp_rows(LayerRows& rows) {
  const HybridConfig& c = rows.config();
  rows.whole("mlp.gate", "mlp.gate_proj.weight", {c.intermediate, c.hidden}, "intermediate_size, hidden_size");
  rows.whole("mlp.up", "mlp.up_proj.weight", {c.intermediate, c.hidden}, "intermediate_size, hidden_size");
  rows.whole("mlp.down", "mlp.down_proj.weight", {c.hidden, c.intermediate}, "hidden_size, intermediate_size");
}

// Experts lie in one tensor, or one by one.
void add_expert_rows(LayerRows& rows) {
  const HybridConfig& c = rows.config();
  const MoeConfig& m = *c.moe;
  const Shape gate_up{m.experts, 2 * m.intermediate, c.hidden}, down{m.experts, c.hidden, m.intermediate};
  WeightForm gate_up_apart, down_apart;
  gate_up_apart.sources.reserve(static_cast<std::size_t>(2 * m.experts));
  for (std::int64_t e = 0; e < m.experts; ++e) {
    const auto source = [&](std::string_view name, Shape shape, std::string_view axes) {
      return rows.tensor(fmt::format("mlp.experts.{}.{}.weight", e, name), std::move(shape), axes);
    };
    for (const std::string_view name : {"gate_proj", "up_proj"}) {
      const auto index = static_cast<std::int32_t>(gate_up_apart.sources.size());
      gate_up_apart.sources.push_back(source(name, {m.intermediate, c.hidden}, "moe_intermediate_size, hidden_size"));
      gate_up_apart.runs.push_back({index, 0, m.intermediate});
    }
    down_apart.sources.push_back(source("down_proj", {c.hidden, m.intermediate}, "hidden_size, moe_intermediate_size"));
    down_apart.runs.push_back({static_cast<std::int32_t>(e), 0, c.hidden});
  }
  rows.add("moe.gate_up", gate_up,
           {whole_form(rows.tensor("mlp.experts.gate_up_proj", gate_up,
                                   "num_experts, 2 * moe_intermediate_size, hidden_size")),
            std::move(gate_up_apart)});
  rows.add("moe.down", down,
           {whole_form(rows.tensor("mlp.experts.down_proj", down, "num_experts, hidden_size, moe_intermediate_size")),
            std::move(down_apart)});
}

void add_moe_rows(LayerRows& rows) {
  const HybridConfig& c = rows.config();
  const std::int64_t shared = c.moe->shared_intermediate;
  rows.whole("moe.router", "mlp.gate.weight", {c.moe->experts, c.hidden}, "num_experts, hidden_size");
  add_expert_rows(rows);
  constexpr std::string_view kUp = "shared_expert_intermediate_size, hidden_size";
  rows.whole("moe.shared.gate", "mlp.shared_expert.gate_proj.weight", {shared, c.hidden}, kUp);
  rows.whole("moe.shared.up", "mlp.shared_expert.up_proj.weight", {shared, c.hidden}, kUp);
  rows.whole("moe.shared.down", "mlp.shared_expert.down_proj.weight", {c.hidden, shared},
             "hidden_size, shared_expert_intermediate_size");
  rows.whole("moe.shared_gate", "mlp.shared_expert_gate.weight", {1, c.hidden}, "1, hidden_size");
}

}  // namespace

LayerRows::LayerRows(const HybridConfig& config, std::int64_t layer, std::vector<WeightSpec>& table)
    : config_(config), prefix_(fmt::format("layers.{}.", layer)), table_(table) {}

SourceTensor LayerRows::tensor(std::string_view name, Shape shape, std::string_view axes) const {
  return {prefix_ + std::string(name), std::move(shape), axes};
}

void LayerRows::whole(std::string_view canonical, std::string_view name, Shape shape, std::string_view axes,
                      Elementwise elementwise) {
  add(canonical, shape, {whole_form(tensor(name, shape, axes))});
  table_.back().elementwise = elementwise;
}

void LayerRows::add(std::string_view canonical, Shape shape, std::vector<WeightForm> forms) {
  table_.push_back({prefix_ + std::string(canonical), std::move(shape), std::move(forms), Elementwise::none});
}

void add_layer_rows(LayerRows& rows, std::int64_t layer, void (*add_linear)(LayerRows&)) {
  const HybridConfig& c = rows.config();
  rows.whole("input_norm", "input_layernorm.weight", {c.hidden}, "hidden_size", Elementwise::plus_one);
  if (c.is_linear(layer)) {
    add_linear(rows);
  } else {
    add_attention_rows(rows);
  }
  rows.whole("post_norm", "post_attention_layernorm.weight", {c.hidden}, "hidden_size", Elementwise::plus_one);
  if (c.is_moe(layer)) {
    add_moe_rows(rows);
  } else {
    add_mlp_rows(rows);
  }
}

void add_split_linear_rows(LayerRows& rows) {
  const HybridConfig& c = rows.config();
  rows.whole(
      "linear.qkv", "linear_attn.in_proj_qkv.weight", {c.conv_dim(), c.hidden},
      "2 * linear_num_key_heads * linear_key_head_dim + linear_num_value_heads * linear_value_head_dim, hidden_size");
  rows.whole("linear.z", "linear_attn.in_proj_z.weight", {c.value_dim(), c.hidden},
             "linear_num_value_heads * linear_value_head_dim, hidden_size");
  rows.whole("linear.b", "linear_attn.in_proj_b.weight", {c.linear_v_heads, c.hidden},
             "linear_num_value_heads, hidden_size");
  rows.whole("linear.a", "linear_attn.in_proj_a.weight", {c.linear_v_heads, c.hidden},
             "linear_num_value_heads, hidden_size");
  add_linear_tail_rows(rows);
}

void add_linear_tail_rows(LayerRows& rows) {
  const HybridConfig& c = rows.config();
  rows.whole("linear.conv", "linear_attn.conv1d.weight", {c.conv_dim(), 1, c.conv_kernel},
             "2 * linear_num_key_heads * linear_key_head_dim + linear_num_value_heads * linear_value_head_dim, 1, "
             "linear_conv_kernel_dim");
  rows.whole("linear.A_log", "linear_attn.A_log", {c.linear_v_heads}, "linear_num_value_heads");
  rows.whole("linear.dt_bias", "linear_attn.dt_bias", {c.linear_v_heads}, "linear_num_value_heads");
  rows.whole("linear.norm", "linear_attn.norm.weight", {c.linear_v_dim}, "linear_value_head_dim");
  rows.whole("linear.out", "linear_attn.out_proj.weight", {c.hidden, c.value_dim()},
             "hidden_size, linear_num_value_heads * linear_value_head_dim");
}

}  // namespace sluice

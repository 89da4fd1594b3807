// Qwen3-Next: fused input projections whose rows are grouped by key head.
#include <array>

#include "architecture/weight_rows.h"

namespace sluice {
extern const Family family_qwen3_next;
namespace {

constexpr std::array<std::string_view, 1> kTypes{"qwen3_next"};

// in_proj_qkvz rows per key head: q dk | k dk | v r*dv | z r*dv; in_proj_ba rows per key head: b r | a r; r = Hv / Hk.
void add_grouped_linear_rows(LayerRows& rows) {
  const HybridConfig& c = rows.config();
  const std::int64_t ratio = c.linear_v_heads / c.linear_k_heads;
  const std::int64_t dk = c.linear_k_dim, values = ratio * c.linear_v_dim;
  const std::int64_t group = 2 * dk + 2 * values;
  const SourceTensor qkvz = rows.tensor(
      "linear_attn.in_proj_qkvz.weight", {c.linear_k_heads * group, c.hidden},
      "2 * (linear_num_key_heads * linear_key_head_dim + linear_num_value_heads * linear_value_head_dim), hidden_size");
  const SourceTensor ba = rows.tensor("linear_attn.in_proj_ba.weight", {2 * c.linear_v_heads, c.hidden},
                                      "2 * linear_num_value_heads, hidden_size");
  // Rows [first, first + count) of every group of `stride` rows.
  const auto gather = [&](std::vector<RowRun>& runs, std::int64_t stride, std::int64_t first, std::int64_t count) {
    for (std::int64_t head = 0; head < c.linear_k_heads; ++head) runs.push_back({0, head * stride + first, count});
  };
  std::vector<RowRun> qkv, z, b, a;
  gather(qkv, group, 0, dk);
  gather(qkv, group, dk, dk);
  gather(qkv, group, 2 * dk, values);
  gather(z, group, 2 * dk + values, values);
  gather(b, 2 * ratio, 0, ratio);
  gather(a, 2 * ratio, ratio, ratio);
  rows.add("linear.qkv", {c.conv_dim(), c.hidden}, {{{qkvz}, std::move(qkv)}});
  rows.add("linear.z", {c.value_dim(), c.hidden}, {{{qkvz}, std::move(z)}});
  rows.add("linear.b", {c.linear_v_heads, c.hidden}, {{{ba}, std::move(b)}});
  rows.add("linear.a", {c.linear_v_heads, c.hidden}, {{{ba}, std::move(a)}});
  add_linear_tail_rows(rows);
}

void add_layer(const HybridConfig& config, std::int64_t layer, std::vector<WeightSpec>& table) {
  LayerRows rows(config, layer, table);
  add_layer_rows(rows, layer, add_grouped_linear_rows);
}

}  // namespace

const Family family_qwen3_next{.name = "qwen3_next", .model_types = kTypes, .experts = true, .add_layer = add_layer};

}  // namespace sluice

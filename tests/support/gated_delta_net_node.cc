#include "tests/support/gated_delta_net_node.h"

namespace sluice::ops {
namespace {

// [tokens] or [B, S], then `tail`.
Shape leading(const GatedDeltaNetCase& c, std::initializer_list<std::int64_t> tail) {
  const bool dense = c.layout == QkvLayout::dense || c.layout == QkvLayout::dense_fused;
  Shape shape = dense ? Shape{c.rows(), c.tokens() / c.rows()} : Shape{c.tokens()};
  shape.insert(shape.end(), tail);
  return shape;
}

void add_qkv(const GatedDeltaNetCase& c, Draw& draw, NodeCase& node) {
  const std::int64_t keys = c.k_heads * c.k_dim;
  if (c.layout == QkvLayout::fused || c.layout == QkvLayout::dense_fused) {
    node.inputs[0] = cast(draw.tensor(leading(c, {2 * keys + c.v_heads * c.v_dim}), -0.5f, 0.5f), c.dtype);
    return;
  }
  node.inputs[0] = cast(draw.tensor(leading(c, {c.k_heads, c.k_dim}), -0.5f, 0.5f), c.dtype);
  node.inputs[1] = cast(draw.tensor(leading(c, {c.k_heads, c.k_dim}), -0.5f, 0.5f), c.dtype);
  node.inputs[2] = cast(draw.tensor(leading(c, {c.v_heads, c.v_dim}), -1, 1), c.dtype);
}

void add_gates(const GatedDeltaNetCase& c, Draw& draw, NodeCase& node) {
  const bool gated = c.rule == "gated" || c.rule == "gated_delta";
  const bool delta = c.rule == "delta" || c.rule == "gated_delta";
  const bool raw = c.gate_activation != "none";
  if (gated) {
    const Shape shape = c.per_key ? leading(c, {c.v_heads, c.k_dim}) : leading(c, {c.v_heads});
    node.inputs[4] = cast(draw.tensor(shape, raw ? -2.0f : -1.5f, raw ? 2.0f : 0.0f), c.gate_dtype);
  }
  if (delta) {
    const bool logits = c.beta_activation != "none";
    node.inputs[5] =
        cast(draw.tensor(leading(c, {c.v_heads}), logits ? -2.0f : 0.0f, logits ? 2.0f : 1.0f), c.gate_dtype);
  }
  if (raw) {
    node.inputs[7] = draw.tensor({c.v_heads}, -1, 1);
    node.inputs[8] = draw.tensor(c.dt_bias_per_key ? Shape{c.v_heads, c.k_dim} : Shape{c.v_heads}, -1, 1);
  }
}

}  // namespace

NodeCase make_node(const GatedDeltaNetCase& c, std::uint64_t seed) {
  Draw draw(seed);
  NodeCase node;
  node.op = "GatedDeltaNet";
  node.inputs.resize(11);
  add_qkv(c, draw, node);
  if (c.layout == QkvLayout::split || c.layout == QkvLayout::fused) {
    node.inputs[3] = i32_tensor({c.rows() + 1}, c.offsets);
  }
  add_gates(c, draw, node);
  if (c.initial_state) node.inputs[6] = draw.tensor({c.rows(), c.v_heads, c.v_dim, c.k_dim}, -0.5f, 0.5f);
  if (c.capacity > 0) {
    std::vector<std::int32_t> counts;
    for (std::int64_t row = 0; row < c.rows(); ++row) counts.push_back(static_cast<std::int32_t>(3 * row - 1));
    node.inputs[9] = i32_tensor({c.rows()}, counts);
    node.inputs[10] = i32_tensor({1}, {c.capture_active ? 1 : 0});
  }
  node.attributes = {{"update_rule", c.rule},
                     {"gate_activation", c.gate_activation},
                     {"beta_activation", c.beta_activation},
                     {"qk_l2_norm", std::int64_t{c.qk_l2_norm}},
                     {"scale", c.scale},
                     {"state_update_capacity", c.capacity}};
  const std::size_t output_rank = leading(c, {0, 0}).size();
  node.outputs = {OutputSpec{c.dtype, output_rank}, OutputSpec{DType::f32, 4}};
  if (c.capacity > 0) node.outputs.push_back(OutputSpec{DType::f32, 2});
  return node;
}

}  // namespace sluice::ops

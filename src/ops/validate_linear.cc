#include "ops/validate_linear.h"

#include "base/error.h"
#include "base/shape.h"

namespace sluice::ops {
namespace {

MoeActivation parse_activation(std::string_view text) {
  if (text == "silu") return MoeActivation::silu;
  if (text == "gelu_tanh") return MoeActivation::gelu_tanh;
  refuse_text("activation", "silu or gelu_tanh", text);
}

WeightFormat format_of(const Argument& weight) {
  expect_float(weight);
  return *weight_format(weight.dtype);
}

const std::byte* bytes_of(const Argument& argument) { return static_cast<const std::byte*>(argument.data); }

}  // namespace

WeightView validate_linear_weight(const Argument& weight) {
  const WeightFormat format = format_of(weight);
  expect_rank(weight, 2, "[N, K]");
  return {bytes_of(weight), format, weight.shape[0], weight.shape[1]};
}

LinearCall validate_linear(const Argument& x, const WeightView& weight, const Argument& bias) {
  expect_dtype(x, {DType::f32});
  const std::size_t rank = x.shape.rank();
  if (rank == 0 || x.shape.last() != weight.cols) {
    fail("{}: expected [.., K] with K = {} as the weight's [N, K] = [{}, {}], found {}", label(x), weight.cols,
         weight.rows, weight.cols, to_string(x.shape.span()));
  }
  LinearCall call;
  call.output = x.shape;
  call.output[rank - 1] = weight.rows;
  call.output.elements();
  LinearArgs& args = call.args;
  args.rows = Dims(x.shape.span().first(rank - 1)).elements();
  args.x = static_cast<const float*>(x.data);
  args.x_stride = weight.cols;
  args.weight = weight;
  args.y_stride = weight.rows;
  if (bias.present) {
    expect_dtype(bias, {DType::f32});
    expect_shape(bias, {weight.rows}, "[N]");
    args.bias = static_cast<const float*>(bias.data);
  }
  return call;
}

MoeAttributes read_moe(const Attributes& attributes) {
  MoeAttributes result;
  result.k = attributes.count("k");
  result.normalize = attributes.flag("normalize");
  result.activation = parse_activation(attributes.text("activation"));
  return result;
}

MoeWeights validate_moe_weights(const MoeAttributes& attributes, const Argument& gate_up, const Argument& down,
                                const Argument& up) {
  expect_rank(down, 3, "[E, H, I]");
  for (const std::size_t axis : {0u, 1u, 2u}) expect_positive(down, axis, "every extent");
  MoeWeights weights;
  weights.experts = down.shape[0];
  weights.hidden = down.shape[1];
  weights.intermediate = down.shape[2];
  if (attributes.k > weights.experts) {
    fail("attribute k: expected 1..{}, the experts of {}, found {}", weights.experts, label(down), attributes.k);
  }
  weights.down = dense_experts(bytes_of(down), format_of(down), weights.hidden, weights.intermediate);
  if (up.present) {
    const Dims expected{weights.experts, weights.intermediate, weights.hidden};
    expect_shape(gate_up, expected, "[E, I, H] (beside up)");
    expect_shape(up, expected, "[E, I, H]");
    weights.gate = dense_experts(bytes_of(gate_up), format_of(gate_up), weights.intermediate, weights.hidden);
    weights.up = dense_experts(bytes_of(up), format_of(up), weights.intermediate, weights.hidden);
    return weights;
  }
  expect_shape(gate_up, {weights.experts, 2 * weights.intermediate, weights.hidden}, "[E, 2I, H] (without up)");
  const MoeShape shape{.hidden = weights.hidden, .intermediate = weights.intermediate, .experts = weights.experts};
  const GateUp halves = split_gate_up(bytes_of(gate_up), format_of(gate_up), shape);
  weights.gate = halves.gate;
  weights.up = halves.up;
  return weights;
}

MoeArgs validate_moe(const MoeAttributes& attributes, const MoeWeights& weights, const Argument& x,
                     const Argument& router_logits) {
  expect_dtype(x, {DType::f32});
  expect_dtype(router_logits, {DType::f32});
  expect_rank(x, 2, "[T, H]");
  expect_shape(x, {x.shape[0], weights.hidden}, "[T, H]");
  expect_shape(router_logits, {x.shape[0], weights.experts}, "[T, E]");
  MoeArgs args;
  args.shape = {.tokens = x.shape[0],
                .hidden = weights.hidden,
                .intermediate = weights.intermediate,
                .experts = weights.experts,
                .k = attributes.k};
  // What a token's chosen experts produce must be countable.
  const MoeShape& shape = args.shape;
  Dims{shape.tokens, shape.k, shape.hidden}.elements();
  Dims{shape.tokens, shape.k, 2, shape.intermediate}.elements();
  args.x = static_cast<const float*>(x.data);
  args.router_logits = static_cast<const float*>(router_logits.data);
  args.gate = weights.gate;
  args.up = weights.up;
  args.down = weights.down;
  args.activation = attributes.activation;
  args.normalize = attributes.normalize;
  return args;
}

}  // namespace sluice::ops

#include "ops/validate_varlen_linear_attention.h"

#include <algorithm>

#include "base/error.h"
#include "base/shape.h"
#include "ops/update_rule.h"

namespace sluice::ops {
namespace {

bool parse_softplus_decay(std::string_view text) {
  if (text == "none") return false;
  if (text == "softplus_decay") return true;
  refuse_text("decay_activation", "none or softplus_decay", text);
}

BetaActivation parse_beta_activation(std::string_view text) {
  if (text == "none") return BetaActivation::none;
  if (text == "sigmoid") return BetaActivation::sigmoid;
  if (text == "twice_sigmoid") return BetaActivation::twice_sigmoid;
  refuse_text("beta_activation", "none, sigmoid or twice_sigmoid", text);
}

void read_heads(const VarlenLinearAttentionInputs& in, VarlenLinearAttentionArgs& args) {
  expect_float(in.query);
  expect_same_dtype(in.key, in.query);
  expect_same_dtype(in.value, in.query);
  expect_rank(in.query, 3, "[N, Hq, dk]");
  expect_rank(in.key, 3, "[N, Hk, dk]");
  expect_rank(in.value, 3, "[N, Hv, dv]");
  for (const Argument* argument : {&in.query, &in.key, &in.value}) {
    expect_positive(*argument, 1, "the number of heads");
    expect_positive(*argument, 2, "the head size");
  }
  args.tokens = in.query.shape[0];
  args.q_heads = in.query.shape[1];
  args.k_heads = in.key.shape[1];
  args.v_heads = in.value.shape[1];
  args.k_dim = in.query.shape[2];
  args.v_dim = in.value.shape[2];
  expect_shape(in.key, {args.tokens, args.k_heads, args.k_dim}, "[N, Hk, dk]");
  expect_shape(in.value, {args.tokens, args.v_heads, args.v_dim}, "[N, Hv, dv]");
  if (args.v_heads % args.k_heads != 0) {
    fail("{}: expected a number of heads that divides the {} of {}, found {}", label(in.key), args.v_heads,
         label(in.value), args.k_heads);
  }
  if (args.q_heads % args.v_heads != 0 && args.v_heads % args.q_heads != 0) {
    fail("{}: expected a number of heads that divides the {} of {} or is a multiple of it, found {}", label(in.query),
         args.v_heads, label(in.value), args.q_heads);
  }
  args.dtype = in.query.dtype;
  args.query = in.query.data;
  args.key = in.key.data;
  args.value = in.value.data;
}

void read_rows(const VarlenLinearAttentionInputs& in, VarlenLinearAttentionCall& call) {
  VarlenLinearAttentionArgs& args = call.args;
  call.cu_seqlens = Indices(in.cumulative_sequence_length);
  args.rows = expect_offsets(in.cumulative_sequence_length, call.cu_seqlens, args.tokens);
  args.cu_seqlens = call.cu_seqlens.data();
  expect_dtype(in.initial_state, {DType::f32});
  expect_shape(in.initial_state, {args.rows, args.v_heads, args.v_dim, args.k_dim}, "[B, Hv, dv, dk]");
  args.initial_state = static_cast<const float*>(in.initial_state.data);
}

void read_gates(const VarlenLinearAttentionInputs& in, VarlenLinearAttentionArgs& args) {
  expect_by_rule(in.decay, has_decay(args.rule), args.rule);
  expect_by_rule(in.beta, has_delta(args.rule), args.rule);
  if (in.decay.present) {
    expect_gate_dtype(in.decay, in.query);
    args.gate_dtype = in.decay.dtype;
    args.decay = in.decay.data;
    args.per_key_decay = in.decay.shape.rank() == 3;
    expect_shape(in.decay,
                 args.per_key_decay ? Dims{args.tokens, args.v_heads, args.k_dim} : Dims{args.tokens, args.v_heads},
                 args.per_key_decay ? "[N, Hv, dk]" : "[N, Hv]");
  }
  if (in.beta.present) {
    expect_gate_dtype(in.beta, in.query);
    if (in.decay.present) expect_same_dtype(in.beta, in.decay);
    args.gate_dtype = in.beta.dtype;
    args.beta = in.beta.data;
    args.shared_beta = args.v_heads != 1 && in.beta.shape == Dims{args.tokens, 1};
    if (!args.shared_beta) expect_shape(in.beta, {args.tokens, args.v_heads}, "[N, Hv] (or [N, 1])");
  }
}

void read_gate_parameters(const VarlenLinearAttentionInputs& in, VarlenLinearAttentionArgs& args) {
  if (!args.softplus_decay) {
    expect_absent(in.a_log, "decay_activation none does not use it");
    expect_absent(in.dt_bias, "decay_activation none does not use it");
    return;
  }
  expect_present(in.a_log, "decay_activation softplus_decay needs it");
  expect_present(in.dt_bias, "decay_activation softplus_decay needs it");
  expect_dtype(in.a_log, {DType::f32});
  expect_dtype(in.dt_bias, {DType::f32});
  args.per_key_gate = in.a_log.shape.rank() == 2;
  const Dims expected = args.per_key_gate ? Dims{args.v_heads, args.k_dim} : Dims{args.v_heads};
  const std::string_view layout = args.per_key_gate ? "[Hv, dk]" : "[Hv]";
  expect_shape(in.a_log, expected, layout);
  expect_shape(in.dt_bias, expected, layout);
  if (args.per_key_gate && !args.per_key_decay) {
    fail("{}: expected [Hv] with a decay of one scalar a head, found {}", label(in.a_log),
         to_string(in.a_log.shape.span()));
  }
  args.a_log = static_cast<const float*>(in.a_log.data);
  args.dt_bias = static_cast<const float*>(in.dt_bias.data);
}

}  // namespace

VarlenLinearAttentionAttributes read_varlen_linear_attention(const Attributes& attributes) {
  VarlenLinearAttentionAttributes result;
  result.rule = parse_update_rule(attributes.text("update_rule"));
  result.scale = attributes.number("scale");
  result.softplus_decay = parse_softplus_decay(attributes.text("decay_activation"));
  result.beta_activation = parse_beta_activation(attributes.text("beta_activation"));
  attributes.integer_in("max_checkpoints", 0, 0);
  return result;
}

VarlenLinearAttentionCall validate_varlen_linear_attention(const VarlenLinearAttentionAttributes& attributes,
                                                           const VarlenLinearAttentionInputs& in) {
  VarlenLinearAttentionCall call;
  VarlenLinearAttentionArgs& args = call.args;
  args.rule = attributes.rule;
  args.scale = attributes.scale;
  args.softplus_decay = attributes.softplus_decay;
  args.beta_activation = attributes.beta_activation;
  read_heads(in, args);
  read_rows(in, call);
  read_gates(in, args);
  read_gate_parameters(in, args);
  call.output = {args.tokens, std::max(args.q_heads, args.v_heads), args.v_dim};
  call.state = in.initial_state.shape;
  call.checkpoints = {0, args.rows, args.v_heads, args.v_dim, args.k_dim};
  call.output.elements();
  Dims{std::max<std::int64_t>(args.rows, 1), args.v_heads, args.v_dim, args.k_dim}.elements();
  return call;
}

}  // namespace sluice::ops

#include "ops/validate_gated_delta_net.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/shape.h"
#include "ops/update_rule.h"

namespace sluice::ops {
namespace {

constexpr std::int64_t kMaxCapacity = 8;  // tokens a row

// Added to the sum of squares of q and k: the runtime's operator takes another with the sigmoid gate (measured, 1.32).
constexpr float kEpsilon = 1e-12f;
constexpr float kSigmoidGateEpsilon = 1e-6f;

GateActivation parse_gate_activation(std::string_view text) {
  if (text == "none") return GateActivation::none;
  if (text == "softplus" || text == "qwen") return GateActivation::softplus;
  if (text == "sigmoid" || text == "kda") return GateActivation::sigmoid;
  refuse_text("gate_activation", "none, softplus (qwen) or sigmoid (kda)", text);
}

BetaActivation parse_beta_activation(std::string_view text) {
  if (text == "none") return BetaActivation::none;
  if (text == "sigmoid") return BetaActivation::sigmoid;
  refuse_text("beta_activation", "none or sigmoid", text);
}

// The axes in front of heads: [tokens] or [B, S].
struct Leading {
  Dims dims;
  std::int64_t tokens = 0;
  bool dense() const { return dims.rank() == 2; }
};

// Leading extents followed by `tail`.
Dims with_tail(const Leading& leading, std::initializer_list<std::int64_t> tail) {
  std::array<std::int64_t, Dims::kMaxRank> extents{};
  std::size_t rank = 0;
  for (const std::int64_t e : leading.dims.span()) extents[rank++] = e;
  for (const std::int64_t e : tail) extents[rank++] = e;
  return Dims(std::span<const std::int64_t>(extents.data(), rank));
}

Leading leading_of(const Argument& argument, std::size_t tail) {
  Leading leading;
  leading.dims = Dims(argument.shape.span().first(argument.shape.rank() - tail));
  leading.tokens = leading.dims.elements();
  return leading;
}

const std::byte* at_element(const Argument& argument, std::int64_t element) {
  if (argument.data == nullptr) return nullptr;
  return static_cast<const std::byte*>(argument.data) +
         element * static_cast<std::int64_t>(dtype_bytes(argument.dtype));
}

void check_heads(const Argument& query, const Argument& value, const GatedDeltaNetShape& shape) {
  if (shape.v_heads % shape.q_heads == 0) return;
  fail("{}: expected a number of value heads that is a multiple of the {} query heads of {}, found {}", label(value),
       shape.q_heads, label(query), shape.v_heads);
}

// Query, key and value as three tensors.
Leading read_separate(const GatedDeltaNetInputs& in, GatedDeltaNetArgs& args) {
  expect_present(in.value, "key and value come together");
  const std::size_t rank = in.query.shape.rank();
  if (rank != 3 && rank != 4) {
    fail("{}: expected [tokens, Hq, dk] or [B, S, Hq, dk], found {}", label(in.query),
         to_string(in.query.shape.span()));
  }
  expect_rank(in.key, rank, "like query");
  expect_rank(in.value, rank, "like query");
  expect_positive(in.query, rank - 2, "Hq");
  expect_positive(in.query, rank - 1, "dk");
  expect_positive(in.value, rank - 2, "Hv");
  expect_positive(in.value, rank - 1, "dv");
  const Leading leading = leading_of(in.query, 2);
  GatedDeltaNetShape& shape = args.shape;
  shape.q_heads = shape.k_heads = in.query.shape[rank - 2];
  shape.k_dim = in.query.shape[rank - 1];
  shape.v_heads = in.value.shape[rank - 2];
  shape.v_dim = in.value.shape[rank - 1];
  expect_shape(in.key, in.query.shape, "query's shape");
  expect_shape(in.value, with_tail(leading, {shape.v_heads, shape.v_dim}), "[.., Hv, dv]");
  check_heads(in.query, in.value, shape);
  args.query = {in.query.data, shape.q_heads * shape.k_dim, shape.k_dim};
  args.key = {in.key.data, shape.k_heads * shape.k_dim, shape.k_dim};
  args.value = {in.value.data, shape.v_heads * shape.v_dim, shape.v_dim};
  return leading;
}

// One tensor whose rows are all query heads, all key heads, all value heads; the state says how many there are.
Leading read_packed(const GatedDeltaNetInputs& in, GatedDeltaNetArgs& args) {
  expect_absent(in.value, "key and value come together");
  const std::size_t rank = in.query.shape.rank();
  if (rank != 2 && rank != 3) {
    fail("{}: expected packed [tokens, width] or [B, S, width] without key and value, found {}", label(in.query),
         to_string(in.query.shape.span()));
  }
  expect_present(in.initial_state, "a packed query takes Hv, dv and dk from it");
  expect_rank(in.initial_state, 4, "[B, Hv, dv, dk]");
  expect_positive(in.query, rank - 1, "width");
  expect_positive(in.initial_state, 1, "Hv");
  expect_positive(in.initial_state, 2, "dv");
  expect_positive(in.initial_state, 3, "dk");
  GatedDeltaNetShape& shape = args.shape;
  shape.v_heads = in.initial_state.shape[1];
  shape.v_dim = in.initial_state.shape[2];
  shape.k_dim = in.initial_state.shape[3];
  const std::int64_t width = in.query.shape.last();
  const std::int64_t keys = width - Dims{shape.v_heads, shape.v_dim}.elements();
  if (keys <= 0 || keys % (2 * shape.k_dim) != 0 || shape.v_heads % (keys / (2 * shape.k_dim)) != 0) {
    fail(
        "{}: expected a width of 2 * Hk * dk + Hv * dv with Hv a multiple of Hk, for Hv {}, dv {}, dk {} of {}; found "
        "{}",
        label(in.query), shape.v_heads, shape.v_dim, shape.k_dim, label(in.initial_state), width);
  }
  shape.q_heads = shape.k_heads = keys / (2 * shape.k_dim);
  args.query = {in.query.data, width, shape.k_dim};
  args.key = {at_element(in.query, keys / 2), width, shape.k_dim};
  args.value = {at_element(in.query, keys), width, shape.v_dim};
  return leading_of(in.query, 1);
}

void read_rows(const GatedDeltaNetInputs& in, const Leading& leading, GatedDeltaNetCall& call) {
  GatedDeltaNetShape& shape = call.args.shape;
  shape.tokens = leading.tokens;
  if (in.cu_seqlens.present) {
    if (leading.dense()) fail("{} must be left out: {} is dense, [B, S, ..]", label(in.cu_seqlens), label(in.query));
    call.cu_seqlens = Indices(in.cu_seqlens);
    shape.rows = expect_offsets(in.cu_seqlens, call.cu_seqlens, shape.tokens);
    call.args.cu_seqlens = call.cu_seqlens.data();
    return;
  }
  if (leading.dense()) {
    shape.rows = leading.dims[0];
    return;
  }
  expect_present(in.initial_state, "without cu_seqlens it says how many rows there are");
  expect_rank(in.initial_state, 4, "[B, Hv, dv, dk]");
  shape.rows = in.initial_state.shape[0];
  const bool even = shape.rows > 0 ? shape.tokens % shape.rows == 0 : shape.tokens == 0;
  if (!even) {
    fail("{}: expected a number of tokens that the {} rows of {} divide, found {}", label(in.query), shape.rows,
         label(in.initial_state), shape.tokens);
  }
}

void read_decay(const GatedDeltaNetInputs& in, const Leading& leading, GatedDeltaNetArgs& args) {
  expect_by_rule(in.decay, has_decay(args.rule), args.rule);
  if (!in.decay.present) return;
  expect_gate_dtype(in.decay, in.query);
  GatedDeltaNetShape& shape = args.shape;
  const Dims per_head = with_tail(leading, {shape.v_heads});
  const Dims per_key = with_tail(leading, {shape.v_heads, shape.k_dim});
  shape.per_key = in.decay.shape == per_key;
  if (!shape.per_key && in.decay.shape != per_head) {
    fail("{}: expected [.., Hv] = {} or [.., Hv, dk] = {}, found {}", label(in.decay), to_string(per_head.span()),
         to_string(per_key.span()), to_string(in.decay.shape.span()));
  }
  const std::int64_t head = shape.per_key ? shape.k_dim : 1;
  args.gate_dtype = in.decay.dtype;
  args.decay = {in.decay.data, shape.v_heads * head, head};
}

void read_beta(const GatedDeltaNetInputs& in, const Leading& leading, GatedDeltaNetArgs& args) {
  expect_by_rule(in.beta, has_delta(args.rule), args.rule);
  if (!in.beta.present) return;
  expect_gate_dtype(in.beta, in.query);
  if (in.decay.present) expect_same_dtype(in.beta, in.decay);
  expect_shape(in.beta, with_tail(leading, {args.shape.v_heads}), "[.., Hv]");
  args.gate_dtype = in.beta.dtype;
  args.beta = {in.beta.data, args.shape.v_heads, 1};
}

void read_gate_parameters(const GatedDeltaNetInputs& in, GatedDeltaNetArgs& args) {
  if (args.gate_activation == GateActivation::none) {
    expect_absent(in.a_log, "gate_activation none does not use it");
    expect_absent(in.dt_bias, "gate_activation none does not use it");
    return;
  }
  expect_present(in.a_log, "gate_activation needs it");
  expect_present(in.dt_bias, "gate_activation needs it");
  expect_dtype(in.a_log, {DType::f32});
  expect_dtype(in.dt_bias, {DType::f32});
  const GatedDeltaNetShape& shape = args.shape;
  expect_shape(in.a_log, {shape.v_heads}, "[Hv]");
  args.a_log = static_cast<const float*>(in.a_log.data);
  args.dt_bias = static_cast<const float*>(in.dt_bias.data);
  if (!shape.per_key || in.dt_bias.shape == Dims{shape.v_heads}) {
    expect_shape(in.dt_bias, {shape.v_heads}, "[Hv]");
    return;
  }
  const Dims per_key{shape.v_heads, shape.k_dim};
  if (in.dt_bias.shape != per_key && in.dt_bias.shape != Dims{per_key.elements()}) {
    fail("{}: expected [Hv] = [{}], [Hv, dk] = {} or [Hv * dk], found {}", label(in.dt_bias), shape.v_heads,
         to_string(per_key.span()), to_string(in.dt_bias.shape.span()));
  }
  args.dt_bias_per_key = true;
}

void read_capture(const GatedDeltaNetInputs& in, GatedDeltaNetCall& call) {
  const GatedDeltaNetShape& shape = call.args.shape;
  if (in.state_update_active.present) {
    const Indices active(in.state_update_active);
    expect_shape(in.state_update_active, {1}, "[1]");
    call.args.capture_active = active.data()[0] != 0;
  }
  if (shape.capacity == 0) return expect_absent(in.capture_count, "state_update_capacity is 0");
  expect_present(in.capture_count, "state_update_capacity is not 0");
  call.capture_count = Indices(in.capture_count);
  expect_shape(in.capture_count, {shape.rows}, "[B]");
  call.args.capture_count = call.capture_count.data();
}

void set_output_shapes(const Leading& leading, GatedDeltaNetCall& call) {
  const GatedDeltaNetShape& shape = call.args.shape;
  call.output = with_tail(leading, {shape.output_heads(), shape.v_dim});
  call.state = {shape.rows, shape.v_heads, shape.v_dim, shape.k_dim};
  // Each factor is bounded before the product is formed.
  const std::int64_t widths = Dims{shape.v_heads, shape.per_key ? shape.k_dim : 1}.elements() +
                              Dims{shape.k_heads, shape.k_dim}.elements() + Dims{shape.v_heads, shape.v_dim}.elements();
  call.capsule = {shape.rows, shape.capacity * widths};
  call.output.elements();
  call.capsule.elements();
  Dims{std::max<std::int64_t>(shape.rows, 1), shape.v_heads, shape.v_dim, shape.k_dim}.elements();
}

}  // namespace

GatedDeltaNetAttributes read_gated_delta_net(const Attributes& attributes) {
  GatedDeltaNetAttributes result;
  result.rule = parse_update_rule(attributes.text("update_rule"));
  result.scale = attributes.number("scale");
  result.gate_activation = parse_gate_activation(attributes.text("gate_activation"));
  result.gate_lower_bound = attributes.number("gate_lower_bound");
  if (result.gate_lower_bound >= 0) {
    fail("attribute gate_lower_bound: expected a negative number, found {}", result.gate_lower_bound);
  }
  result.beta_activation = parse_beta_activation(attributes.text("beta_activation"));
  result.qk_l2_norm = attributes.flag("qk_l2_norm");
  attributes.integer_in("chunk_size", 1, std::numeric_limits<std::int32_t>::max());
  result.capacity = attributes.integer_in("state_update_capacity", 0, kMaxCapacity);
  return result;
}

GatedDeltaNetCall validate_gated_delta_net(const GatedDeltaNetAttributes& attributes, const GatedDeltaNetInputs& in) {
  GatedDeltaNetCall call;
  GatedDeltaNetArgs& args = call.args;
  args.rule = attributes.rule;
  args.gate_activation = attributes.gate_activation;
  args.beta_activation = attributes.beta_activation;
  args.gate_lower_bound = attributes.gate_lower_bound;
  args.scale = attributes.scale;
  args.qk_l2_norm = attributes.qk_l2_norm;
  args.qk_l2_epsilon = attributes.gate_activation == GateActivation::sigmoid ? kSigmoidGateEpsilon : kEpsilon;
  args.shape.capacity = attributes.capacity;
  expect_float(in.query);
  if (in.key.present) expect_same_dtype(in.key, in.query);
  if (in.value.present) expect_same_dtype(in.value, in.query);
  args.dtype = in.query.dtype;

  const Leading leading = in.key.present ? read_separate(in, args) : read_packed(in, args);
  read_rows(in, leading, call);
  if (in.initial_state.present) {
    expect_dtype(in.initial_state, {DType::f32});
    const GatedDeltaNetShape& shape = args.shape;
    expect_shape(in.initial_state, {shape.rows, shape.v_heads, shape.v_dim, shape.k_dim}, "[B, Hv, dv, dk]");
    args.initial_state = static_cast<const float*>(in.initial_state.data);
  }
  read_decay(in, leading, args);
  read_beta(in, leading, args);
  read_gate_parameters(in, args);
  read_capture(in, call);
  set_output_shapes(leading, call);
  return call;
}

}  // namespace sluice::ops

#include "kernels/cpu/varlen_linear_attention.h"

#include "base/json.h"
#include "kernels/cpu/gated_delta_net_fixture.h"

namespace sluice {
namespace {

using gdn_test::Buffer;
using gdn_test::expect_close;

// A case of tests/data/ort_vectors.json: what the released ONNX Runtime's LinearAttention gave, its dense rows as packed
// ones and its K-major states transposed.
struct Vector {
  std::string name;
  VarlenLinearAttentionArgs args;
  std::vector<float> query, key, value, decay, beta, state, output, final_state;
  std::vector<std::int32_t> offsets;
  bool has_state = false;
};

std::vector<float> floats(const Json& tensor, std::string_view what) {
  std::vector<float> out;
  for (const Json& x : tensor.at("data", what).as_array(what)) out.push_back(static_cast<float>(x.as_number(what)));
  return out;
}

std::int64_t extent(const Json& tensor, std::size_t axis, std::string_view what) {
  return tensor.at("dims", what).as_array(what)[axis].as_int(what);
}

// [matrices, rows, columns] -> [matrices, columns, rows].
std::vector<float> transposed(const std::vector<float>& in, std::size_t rows, std::size_t columns) {
  std::vector<float> out(in.size());
  for (std::size_t at = 0; at < in.size(); ++at) {
    const std::size_t matrix = at / (rows * columns), r = at / columns % rows, c = at % columns;
    out[(matrix * columns + c) * rows + r] = in[at];
  }
  return out;
}

UpdateRule rule_of(const std::string& name) {
  if (name == "linear") return UpdateRule::linear;
  if (name == "gated") return UpdateRule::gated;
  return name == "delta" ? UpdateRule::delta : UpdateRule::gated_delta;
}

Vector read_case(const Json& c) {
  Vector v;
  v.name = c.at("name", "case").as_string("name");
  const std::string_view what = v.name;
  const Json& attributes = c.at("attributes", what);
  const auto integer = [&](const char* key) { return attributes.at(key, what).at("i", what).as_int(what); };
  const Json::Array& in = c.at("inputs", what).as_array(what);
  VarlenLinearAttentionArgs& a = v.args;
  a.q_heads = integer("q_num_heads"), a.v_heads = integer("kv_num_heads");
  a.rows = extent(in[0], 0, what);
  a.tokens = a.rows * extent(in[0], 1, what);
  a.k_dim = extent(in[0], 2, what) / a.q_heads;
  a.k_heads = extent(in[1], 2, what) / a.k_dim;
  a.v_dim = extent(in[2], 2, what) / a.v_heads;
  a.rule = rule_of(attributes.at("update_rule", what).at("s", what).as_string(what));
  a.scale = static_cast<float>(attributes.at("scale", what).at("f", what).as_number(what));
  v.query = floats(in[0], what), v.key = floats(in[1], what), v.value = floats(in[2], what);
  const auto k_dim = static_cast<std::size_t>(a.k_dim), v_dim = static_cast<std::size_t>(a.v_dim);
  v.has_state = !in[3].is_null();
  v.state.resize(static_cast<std::size_t>(a.rows * a.v_heads) * k_dim * v_dim);
  if (v.has_state) v.state = transposed(floats(in[3], what), k_dim, v_dim);
  if (!in[4].is_null()) {
    v.decay = floats(in[4], what);
    a.per_key_decay = extent(in[4], 2, what) != a.v_heads;
  }
  if (!in[5].is_null()) {
    v.beta = floats(in[5], what);
    a.shared_beta = extent(in[5], 2, what) == 1;
  }
  const Json& outputs = c.at("outputs", what);
  v.output = floats(outputs.at("o", what), what);
  v.final_state = transposed(floats(outputs.at("ps", what), what), k_dim, v_dim);
  for (std::int64_t row = 0; row <= a.rows; ++row)
    v.offsets.push_back(static_cast<std::int32_t>(row * a.tokens / a.rows));
  return v;
}

void bind(Vector& v) {
  v.args.query = v.query.data(), v.args.key = v.key.data(), v.args.value = v.value.data();
  v.args.cu_seqlens = v.offsets.data();
  v.args.initial_state = v.state.data();
  v.args.decay = v.decay.empty() ? nullptr : v.decay.data();
  v.args.beta = v.beta.empty() ? nullptr : v.beta.data();
}

void run(Level level, VarlenLinearAttentionArgs args, std::vector<float>& output, std::vector<float>& state) {
  const std::int64_t heads = std::max(args.q_heads, args.v_heads);
  output.assign(static_cast<std::size_t>(args.tokens * heads * args.v_dim), -7.0f);
  state.assign(static_cast<std::size_t>(args.rows * args.v_heads * args.v_dim * args.k_dim), -7.0f);
  args.output = output.data();
  args.final_state = state.data();
  std::vector<std::byte> scratch(varlen_linear_attention_scratch_bytes(level, args), std::byte{0xff});
  SerialExecutor serial;
  varlen_linear_attention(level, args, scratch, serial);
}

TEST(VarlenLinearAttention, AgreesWithTheRuntimesLinearAttention) {
  const Json all = read_json(SLUICE_SOURCE_DIR "/tests/data/ort_vectors.json");
  int cases = 0;
  for (const Json& c : all.as_array("ort_vectors.json")) {
    if (c.at("op", "case").as_string("op") != "LinearAttention") continue;
    Vector v = read_case(c);
    bind(v);
    for (const Level level : supported_levels()) {
      std::vector<float> output, state;
      run(level, v.args, output, state);
      // 5 tokens of f32 arithmetic on both sides; the vectors print 8 digits.
      expect_close(output, v.output, 1e-6, DType::f32, fmt::format("{} {} output", v.name, level_name(level)));
      expect_close(state, v.final_state, 1e-6, DType::f32, fmt::format("{} {} state", v.name, level_name(level)));
    }
    ++cases;
  }
  EXPECT_EQ(cases, 19);
}

struct Gated {
  gdn_test::Problem problem;
  VarlenLinearAttentionArgs args;

  explicit Gated(const gdn_test::Options& o) : problem(o) {
    args = {.tokens = o.tokens(),
            .rows = o.rows(),
            .q_heads = o.q_heads,
            .k_heads = o.k_heads,
            .v_heads = o.v_heads,
            .k_dim = o.k_dim,
            .v_dim = o.v_dim};
    args.scale = o.scale, args.beta_activation = o.beta;
    args.query = problem.query.data(), args.key = problem.key.data(), args.value = problem.value.data();
    args.cu_seqlens = problem.offsets.data();
    args.initial_state = static_cast<const float*>(problem.state.data());
    args.decay = problem.decay.data(), args.beta = problem.beta.data();
    args.per_key_decay = o.per_key;
  }
};

TEST(VarlenLinearAttention, GivesGatedDeltaNetsBitsOnEqualTerms) {
  gdn_test::Options o;
  o.lengths = {70, 1, 0, 64}, o.qk_l2_norm = false, o.gate = GateActivation::none, o.scale = 1.0f;
  o.decay_low = -0.4f, o.decay_high = -0.01f;
  Gated gated(o);
  SerialExecutor serial;
  for (const Level level : supported_levels()) {
    const gdn_test::Result expected = gated.problem.run(level, serial);
    std::vector<float> output, state;
    run(level, gated.args, output, state);
    EXPECT_TRUE(gdn_test::same_bits(output, expected.output)) << level_name(level);
    EXPECT_TRUE(gdn_test::same_bits(state, expected.state)) << level_name(level);
  }
}

TEST(VarlenLinearAttention, EveryHeadGroupingAndGateFollowsTheSpecification) {
  const std::int64_t heads[][3] = {{1, 1, 2}, {4, 1, 2}, {8, 2, 4}, {1, 2, 4}, {2, 4, 4}};
  for (const auto& [q, k, v] : heads) {
    for (const bool per_key : {false, true}) {
      gdn_test::Options o;
      o.q_heads = q, o.k_heads = k, o.v_heads = v, o.per_key = per_key, o.beta = BetaActivation::twice_sigmoid;
      o.lengths = {70, 3}, o.qk_l2_norm = false, o.k_dim = 12, o.v_dim = 20;
      Gated gated(o);
      std::vector<float> parameters(static_cast<std::size_t>(v * (per_key ? o.k_dim : 1)));
      for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] = 0.1f * static_cast<float>(i % 7) - 0.3f;
      gated.args.softplus_decay = true;
      gated.args.a_log = gated.args.dt_bias = parameters.data();
      gated.args.per_key_gate = per_key;
      std::vector<float> output, state, expected_output, expected_state;
      run(Level::scalar, gated.args, expected_output, expected_state);
      for (const Level level : supported_levels()) {
        run(level, gated.args, output, state);
        const std::string what = fmt::format("{} heads {}/{}/{} per-key {}", level_name(level), q, k, v, per_key);
        expect_close(output, expected_output, gdn_test::tolerance(o), DType::f32, what + " output");
        expect_close(state, expected_state, gdn_test::tolerance(o), DType::f32, what + " state");
      }
    }
  }
}

TEST(VarlenLinearAttention, OneBetaServesEveryHead) {
  gdn_test::Options o;
  o.lengths = {20}, o.qk_l2_norm = false, o.gate = GateActivation::none, o.decay_low = -0.3f, o.decay_high = -0.1f;
  Gated gated(o);
  std::vector<float> shared(20), repeated(80);
  for (std::size_t i = 0; i < repeated.size(); ++i)
    repeated[i] = shared[i / 4] = 0.1f * static_cast<float>(i / 4) - 1.0f;
  for (const Level level : supported_levels()) {
    std::vector<float> output, state, expected_output, expected_state;
    gated.args.beta = repeated.data(), gated.args.shared_beta = false;
    run(level, gated.args, expected_output, expected_state);
    gated.args.beta = shared.data(), gated.args.shared_beta = true;
    run(level, gated.args, output, state);
    EXPECT_TRUE(gdn_test::same_bits(output, expected_output)) << level_name(level);
    EXPECT_TRUE(gdn_test::same_bits(state, expected_state)) << level_name(level);
  }
}

}  // namespace
}  // namespace sluice

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/gated_delta_net_node.h"
#include "tests/support/one_node.h"
#include "tests/support/released_vectors.h"

namespace sluice::ops {
namespace {

using ::testing::HasSubstr;

// LinearAttention of the released runtime: every rule, head ratio and form of decay.
TEST(VarlenLinearAttention, GivesTheReleasedVectors) {
  for (const LinearAttentionVector& vector : linear_attention_vectors()) {
    NodeCase node;
    node.op = "VarlenLinearAttention";
    node.inputs = {vector.query, vector.key, vector.value, vector.offsets, vector.state, vector.decay, vector.beta};
    node.attributes = {{"update_rule", vector.rule}, {"scale", vector.scale}};
    node.outputs = {OutputSpec{DType::f32, 3}, OutputSpec{DType::f32, 4}};
    for (const Level level : supported_levels()) {
      const Outcome ours = run_node(node, level);
      ASSERT_EQ(ours.error, "") << vector.name;
      // Inputs and outputs were printed with four to seven digits.
      EXPECT_TRUE(close(ours[0], vector.output, 2e-6, 2e-6)) << vector.name << level_name(level);
      EXPECT_TRUE(close(ours[1], vector.final_state, 2e-6, 2e-6)) << vector.name << level_name(level);
    }
  }
}

// The node of the evaluation contract and GatedDeltaNet's, given the same inputs.
NodeCase as_varlen(const NodeCase& gated_delta_net, const char* decay_activation) {
  NodeCase node;
  node.op = "VarlenLinearAttention";
  const auto& in = gated_delta_net.inputs;
  node.inputs = {in[0], in[1], in[2], in[3], in[6], in[4], in[5], in[7], in[8]};
  node.attributes = {{"decay_activation", decay_activation}};
  for (const Attribute& attribute : gated_delta_net.attributes) {
    if (attribute.name == "update_rule" || attribute.name == "scale" || attribute.name == "beta_activation") {
      node.attributes.push_back(attribute);
    }
  }
  node.outputs = gated_delta_net.outputs;
  return node;
}

TEST(VarlenLinearAttention, AgreesWithTheRuntimesGatedDeltaNet) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const char* gate : {"none", "softplus"}) {
      for (const bool per_key : {false, true}) {
        const NodeCase gdn = make_node({.offsets = {0, 2, 2, 9, 30},
                                        .gate_activation = gate,
                                        .qk_l2_norm = false,
                                        .per_key = per_key,
                                        .dtype = dtype,
                                        .gate_dtype = dtype});
        const Outcome theirs = run_node(gdn, std::nullopt);
        ASSERT_EQ(theirs.error, "");
        const NodeCase node = as_varlen(gdn, std::string_view(gate) == "none" ? "none" : "softplus_decay");
        for (const Level level : supported_levels()) {
          const Outcome ours = run_node(node, level, 2);
          ASSERT_EQ(ours.error, "");
          const double rounding = dtype == DType::f32 ? 1e-6 : dtype == DType::f16 ? 0x1p-10 : 0x1p-7;
          // Sums of at most 30 tokens of values below 1, each rounded a few times at every one of 30 + 8 steps.
          EXPECT_TRUE(close(ours[0], theirs[0], 8 * 38 * 30 * 0x1p-24, rounding)) << level_name(level);
          EXPECT_TRUE(close(ours[1], theirs[1], 8 * 38 * 30 * 0x1p-24, 1e-6)) << level_name(level);
        }
      }
    }
  }
}

TEST(VarlenLinearAttention, DoublesTheSigmoidOfBeta) {
  NodeCase logits = as_varlen(make_node({.qk_l2_norm = false}), "softplus_decay");
  NodeCase plain = logits;
  logits.attributes = {{"decay_activation", "softplus_decay"}, {"beta_activation", "twice_sigmoid"}};
  plain.attributes = {{"decay_activation", "softplus_decay"}, {"beta_activation", "none"}};
  std::vector<float> beta = to_floats(*logits.inputs[6]);
  for (float& b : beta) b = static_cast<float>(2.0 / (1.0 + std::exp(-static_cast<double>(b))));
  plain.inputs[6] = f32_tensor(logits.inputs[6]->shape, beta);
  const Outcome left = run_node(logits, best_level());
  const Outcome right = run_node(plain, best_level());
  ASSERT_EQ(left.error + right.error, "");
  EXPECT_TRUE(close(left[0], right[0], 1e-5, 1e-5));
}

TEST(VarlenLinearAttention, AcceptsNoTokensAndEmptyCheckpoints) {
  NodeCase node = as_varlen(make_node({.offsets = {0, 0, 0}}), "softplus_decay");
  node.outputs.push_back(OutputSpec{DType::f32, 5});
  const Outcome ours = run_node(node, best_level());
  ASSERT_EQ(ours.error, "");
  EXPECT_TRUE(same_bits(ours[1], *node.inputs[4]));
  EXPECT_EQ(ours[2].shape, (Shape{0, 2, 4, 6, 8}));
}

TEST(VarlenLinearAttention, NamesWhatIsWrong) {
  struct Mistake {
    const char* expected;
    std::function<void(NodeCase&)> make;
  };
  const auto set = [](NodeCase& n, const char* name, AttributeValue value) {
    std::erase_if(n.attributes, [&](const Attribute& a) { return a.name == name; });
    n.attributes.push_back({name, std::move(value)});
  };
  const Mistake mistakes[] = {
      {"attribute max_checkpoints: expected 0..0, found 1",
       [&](NodeCase& n) { set(n, "max_checkpoints", std::int64_t{1}); }},
      {"attribute decay_activation: expected none or softplus_decay, found 'softplus'",
       [&](NodeCase& n) { set(n, "decay_activation", "softplus"); }},
      {"attribute beta_activation: expected none, sigmoid or twice_sigmoid, found 'x'",
       [&](NodeCase& n) { set(n, "beta_activation", "x"); }},
      {"input 7 (a_log) must be left out: decay_activation none does not use it",
       [&](NodeCase& n) { set(n, "decay_activation", "none"); }},
      {"input 8 (dt_bias) is missing: decay_activation softplus_decay needs it",
       [](NodeCase& n) { n.inputs[8].reset(); }},
      {"input 5 (decay) must be left out: update_rule delta does not use it",
       [&](NodeCase& n) { set(n, "update_rule", "delta"); }},
      {"input 6 (beta) is missing: update_rule gated_delta needs it", [](NodeCase& n) { n.inputs[6].reset(); }},
      {"input 4 (initial_state): expected [B, Hv, dv, dk] = [2, 4, 6, 8], found [2, 4, 8, 6]",
       [](NodeCase& n) { n.inputs[4]->shape = {2, 4, 8, 6}; }},
      {"input 7 (a_log): expected [Hv] with a decay of one scalar a head, found [4, 8]",
       [](NodeCase& n) { n.inputs[7] = n.inputs[8] = make_tensor(DType::f32, {4, 8}); }},
      {"input 8 (dt_bias): expected [Hv] = [4], found [4, 8]",
       [](NodeCase& n) { n.inputs[8] = make_tensor(DType::f32, {4, 8}); }},
      {"input 6 (beta): expected [N, Hv] (or [N, 1]) = [8, 4], found [8, 2]",
       [](NodeCase& n) { n.inputs[6] = make_tensor(DType::f32, {8, 2}); }},
      {"input 1 (key): expected a number of heads that divides the 4 of input 2 (value), found 3",
       [](NodeCase& n) { n.inputs[1] = make_tensor(DType::f32, {8, 3, 8}); }},
      {"input 0 (query): expected a number of heads that divides the 4 of input 2 (value) or is a multiple of it, "
       "found 3",
       [](NodeCase& n) { n.inputs[0] = make_tensor(DType::f32, {8, 3, 8}); }},
      {"input 3 (cumulative_sequence_length): expected offsets that never decrease, found 3 at index 2",
       [](NodeCase& n) { n.inputs[3] = i32_tensor({4}, {0, 5, 3, 8}); }},
      {"input 5 (decay): expected [N, Hv, dk] = [8, 4, 8], found [8, 4, 1]",
       [](NodeCase& n) { n.inputs[5]->shape = {8, 4, 1}; }},
  };
  for (const Mistake& mistake : mistakes) {
    NodeCase node = as_varlen(make_node({}), "softplus_decay");
    mistake.make(node);
    const Outcome outcome = run_node(node, best_level());
    EXPECT_THAT(outcome.error, HasSubstr(mistake.expected));
    EXPECT_THAT(outcome.error, HasSubstr("VarlenLinearAttention node 'node': "));
  }
}

}  // namespace
}  // namespace sluice::ops

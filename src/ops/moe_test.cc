#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/one_node.h"

namespace sluice::ops {
namespace {

using ::testing::HasSubstr;

struct MoeCase {
  std::int64_t tokens = 7;
  std::int64_t hidden = 24;
  std::int64_t intermediate = 20;
  std::int64_t experts = 5;
  std::int64_t k = 2;
  bool normalize = true;
  DType weight = DType::f32;
};

NodeCase make_moe(const MoeCase& c) {
  Draw draw(17);
  NodeCase node;
  node.domain = "sluice";
  node.op = "MoE";
  node.inputs = {draw.tensor({c.tokens, c.hidden}, -1, 1), draw.tensor({c.tokens, c.experts}, -2, 2),
                 cast(draw.tensor({c.experts, 2 * c.intermediate, c.hidden}, -1, 1), c.weight),
                 cast(draw.tensor({c.experts, c.hidden, c.intermediate}, -1, 1), c.weight)};
  node.attributes = {{"k", c.k}, {"normalize", std::int64_t{c.normalize}}};
  node.outputs = {OutputSpec{DType::f32, 2}};
  return node;
}

// Rows of `tensor` [E, R, C] in the order `row_of(r)` of each expert.
TestTensor pick_rows(const TestTensor& tensor, std::int64_t rows,
                     const std::function<std::int64_t(std::int64_t)>& row_of) {
  TestTensor result = make_tensor(tensor.dtype, {tensor.shape[0], rows, tensor.shape[2]});
  const std::size_t bytes = static_cast<std::size_t>(tensor.shape[2]) * dtype_bytes(tensor.dtype);
  for (std::int64_t e = 0; e < tensor.shape[0]; ++e) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto* from = tensor.bytes.data() + static_cast<std::size_t>(e * tensor.shape[1] + row_of(r)) * bytes;
      std::copy(from, from + bytes, result.bytes.data() + static_cast<std::size_t>(e * rows + r) * bytes);
    }
  }
  return result;
}

// The runtime's own MoE, whose gate and up rows alternate.
Outcome run_runtimes(const NodeCase& ours, const MoeCase& c) {
  const TestTensor gate_up = cast(*ours.inputs[2], DType::f32);
  NodeCase node;
  node.op = "MoE";
  node.inputs.resize(5);
  node.inputs[0] = ours.inputs[0];
  node.inputs[1] = ours.inputs[1];
  node.inputs[2] = pick_rows(gate_up, 2 * c.intermediate,
                             [&](std::int64_t r) { return r % 2 == 0 ? r / 2 : c.intermediate + r / 2; });
  node.inputs[4] = cast(*ours.inputs[3], DType::f32);
  node.attributes = {{"k", c.k},
                     {"activation_type", "swiglu"},
                     {"swiglu_fusion", std::int64_t{1}},
                     {"normalize_routing_weights", std::int64_t{c.normalize}}};
  node.outputs = {OutputSpec{DType::f32, 2}};
  return run_node(node, std::nullopt);
}

TEST(Moe, GivesTheRuntimesAnswer) {
  for (const DType weight : {DType::f32, DType::f16, DType::bf16}) {
    for (const bool normalize : {false, true}) {
      const MoeCase c{.normalize = normalize, .weight = weight};
      const NodeCase node = make_moe(c);
      const Outcome theirs = run_runtimes(node, c);
      ASSERT_EQ(theirs.error, "");
      for (const Level level : supported_levels()) {
        const Outcome ours = run_node(node, level, 2);
        ASSERT_EQ(ours.error, "");
        // |gate|, |up| < 24; the product of the two, summed over 20 with weights below 1, is below 24 * 24 * 20, and
        // carries the roundings of three sums of about 24 terms.
        EXPECT_TRUE(close(ours[0], theirs[0], 24 * 24 * 20 * 3 * 0x1p-24, 1e-5)) << level_name(level);
      }
    }
  }
}

TEST(Moe, TakesGateAndUpTogetherOrApart) {
  const MoeCase c{.weight = DType::bf16};
  const NodeCase together = make_moe(c);
  NodeCase apart = together;
  apart.inputs[2] = pick_rows(*together.inputs[2], c.intermediate, [](std::int64_t r) { return r; });
  apart.inputs.push_back(
      pick_rows(*together.inputs[2], c.intermediate, [&](std::int64_t r) { return c.intermediate + r; }));
  const Outcome expected = run_node(together, best_level());
  ASSERT_EQ(expected.error, "");
  for (const bool constant : {false, true}) {
    if (constant) apart.initializers = {2, 3, 4};
    const Outcome found = run_node(apart, best_level());
    ASSERT_EQ(found.error, "");
    EXPECT_TRUE(same_bits(found[0], expected[0]));
  }
}

TEST(Moe, AcceptsNoTokens) { EXPECT_EQ(run_node(make_moe({.tokens = 0}), best_level()).error, ""); }

TEST(Moe, NamesWhatIsWrong) {
  struct Mistake {
    const char* expected;
    std::function<void(NodeCase&)> make;
  };
  const Mistake mistakes[] = {
      {"attribute k is missing", [](NodeCase& n) { n.attributes.clear(); }},
      {"attribute k: expected 1..2147483647, found 0", [](NodeCase& n) { n.attributes = {{"k", std::int64_t{0}}}; }},
      {"attribute k: expected 1..5, the experts of input 3 (down), found 6",
       [](NodeCase& n) { n.attributes = {{"k", std::int64_t{6}}}; }},
      {"attribute activation: expected silu or gelu_tanh, found 'relu'",
       [](NodeCase& n) { n.attributes.push_back({"activation", "relu"}); }},
      {"input 2 (gate_up): expected [E, 2I, H] (without up) = [5, 40, 24], found [5, 20, 48]",
       [](NodeCase& n) { n.inputs[2]->shape = {5, 20, 48}; }},
      {"input 3 (down): expected rank 3 [E, H, I], found [120, 20]",
       [](NodeCase& n) { n.inputs[3]->shape = {120, 20}; }},
      {"input 3 (down): every extent must be at least 1 and fit 32 bits, found 0 in [5, 24, 0]",
       [](NodeCase& n) { n.inputs[3] = f32_tensor({5, 24, 0}, {}); }},
      {"input 4 (up): expected [E, I, H] = [5, 20, 24], found [5, 24, 20]",
       [](NodeCase& n) {
         n.inputs[2] = make_tensor(DType::f32, {5, 20, 24});
         n.inputs.push_back(make_tensor(DType::f32, {5, 24, 20}));
       }},
      {"input 2 (gate_up): expected f32 or f16 or bf16, found i8",
       [](NodeCase& n) { n.inputs[2] = make_tensor(DType::i8, {5, 40, 24}); }},
  };
  for (const Mistake& mistake : mistakes) {
    for (const bool constant : {false, true}) {
      NodeCase node = make_moe({});
      if (constant) node.initializers = {2, 3};
      mistake.make(node);
      const Outcome outcome = run_node(node, best_level());
      EXPECT_THAT(outcome.error, HasSubstr(mistake.expected));
      EXPECT_THAT(outcome.error, HasSubstr("MoE node 'node': "));
    }
  }
  const Mistake activations[] = {
      {"input 0 (x): expected [T, H] = [7, 24], found [7, 12]",
       [](NodeCase& n) { n.inputs[0] = make_tensor(DType::f32, {7, 12}); }},
      {"input 0 (x): expected f32, found bf16", [](NodeCase& n) { n.inputs[0] = cast(*n.inputs[0], DType::bf16); }},
      {"input 1 (router_logits): expected [T, E] = [7, 5], found [5, 7]",
       [](NodeCase& n) { n.inputs[1]->shape = {5, 7}; }},
  };
  for (const Mistake& mistake : activations) {
    NodeCase node = make_moe({});
    mistake.make(node);
    EXPECT_THAT(run_node(node, best_level()).error, HasSubstr(mistake.expected));
  }
}

}  // namespace
}  // namespace sluice::ops

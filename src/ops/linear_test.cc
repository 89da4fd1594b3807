#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/one_node.h"

namespace sluice::ops {
namespace {

using ::testing::HasSubstr;

NodeCase make_linear(Shape x_shape, std::int64_t n, DType weight, bool bias) {
  Draw draw(11);
  const std::int64_t k = x_shape.back();
  NodeCase node;
  node.domain = "sluice";
  node.op = "Linear";
  node.outputs = {OutputSpec{DType::f32, x_shape.size()}};
  node.inputs = {draw.tensor(std::move(x_shape), -1, 1), cast(draw.tensor({n, k}, -1, 1), weight)};
  if (bias) node.inputs.push_back(draw.tensor({n}, -1, 1));
  return node;
}

// The runtime's Gemm on the widened weight.
Outcome run_gemm(const NodeCase& linear) {
  NodeCase node;
  node.domain = "";
  node.op = "Gemm";
  node.inputs = linear.inputs;
  node.inputs[1] = cast(*linear.inputs[1], DType::f32);
  node.attributes = {{"transB", std::int64_t{1}}};
  node.outputs = {OutputSpec{DType::f32, 2}};
  return run_node(node, std::nullopt);
}

TEST(Linear, GivesTheRuntimesProduct) {
  for (const DType weight : {DType::f32, DType::f16, DType::bf16}) {
    for (const bool bias : {false, true}) {
      const NodeCase node = make_linear({5, 131}, 67, weight, bias);
      const Outcome theirs = run_gemm(node);
      ASSERT_EQ(theirs.error, "");
      for (const Level level : supported_levels()) {
        const Outcome ours = run_node(node, level, 2);
        ASSERT_EQ(ours.error, "");
        // Two sums of 131 products below 1 each: at most 131 roundings of a value below 131 on either side.
        EXPECT_TRUE(close(ours[0], theirs[0], 2 * 131 * 131 * 0x1p-24, 0)) << level_name(level);
      }
    }
  }
}

TEST(Linear, TreatsLeadingAxesAsRows) {
  const NodeCase flat = make_linear({6, 19}, 4, DType::bf16, true);
  const Outcome expected = run_node(flat, best_level());
  NodeCase cube = flat;
  cube.inputs[0]->shape = {2, 1, 3, 19};
  cube.outputs = {OutputSpec{DType::f32, 4}};
  const Outcome found = run_node(cube, best_level());
  ASSERT_EQ(found.error, "");
  EXPECT_EQ(found[0].shape, (Shape{2, 1, 3, 4}));
  EXPECT_EQ(found[0].bytes, expected[0].bytes);
}

TEST(Linear, ReadsAConstantWeightLikeAFedOne) {
  for (const DType weight : {DType::f32, DType::f16, DType::bf16}) {
    NodeCase node = make_linear({3, 40}, 9, weight, true);
    const Outcome fed = run_node(node, best_level());
    node.initializers = {1, 2};
    const Outcome constant = run_node(node, best_level());
    ASSERT_EQ(constant.error, "");
    EXPECT_TRUE(same_bits(constant[0], fed[0]));
  }
}

TEST(Linear, AcceptsNoRowsAndNoColumns) {
  const Outcome no_rows = run_node(make_linear({0, 8}, 5, DType::f32, true), best_level());
  EXPECT_EQ(no_rows.error, "");
  NodeCase node = make_linear({2, 0}, 5, DType::f32, true);
  const Outcome no_columns = run_node(node, best_level());
  ASSERT_EQ(no_columns.error, "");
  EXPECT_EQ(to_floats(no_columns[0])[3], to_floats(*node.inputs[2])[3]);
}

TEST(Linear, NamesWhatIsWrong) {
  struct Mistake {
    const char* expected;
    std::function<void(NodeCase&)> make;
  };
  const Mistake mistakes[] = {
      {"input 0 (x): expected f32, found f16", [](NodeCase& n) { n.inputs[0] = cast(*n.inputs[0], DType::f16); }},
      {"input 0 (x): expected [.., K] with K = 8 as the weight's [N, K] = [5, 8], found [8, 3]",
       [](NodeCase& n) { n.inputs[0]->shape = {8, 3}; }},
      {"input 1 (weight): expected f32 or f16 or bf16, found i32",
       [](NodeCase& n) { n.inputs[1] = make_tensor(DType::i32, {5, 8}); }},
      {"input 1 (weight): expected rank 2 [N, K], found [40]", [](NodeCase& n) { n.inputs[1]->shape = {40}; }},
      {"input 2 (bias): expected [N] = [5], found [5, 1]", [](NodeCase& n) { n.inputs[2]->shape = {5, 1}; }},
      {"input 2 (bias): expected f32, found bf16", [](NodeCase& n) { n.inputs[2] = cast(*n.inputs[2], DType::bf16); }},
  };
  for (const Mistake& mistake : mistakes) {
    for (const bool constant : {false, true}) {
      NodeCase node = make_linear({3, 8}, 5, DType::f32, true);
      if (constant) node.initializers = {1, 2};
      mistake.make(node);
      const Outcome outcome = run_node(node, best_level());
      EXPECT_THAT(outcome.error, HasSubstr(mistake.expected));
      EXPECT_THAT(outcome.error, HasSubstr("Linear node 'node': "));
    }
  }
}

}  // namespace
}  // namespace sluice::ops

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/one_node.h"
#include "tests/support/released_vectors.h"

namespace sluice::ops {
namespace {

using ::testing::HasSubstr;

NodeCase make_norm(Shape shape, std::int64_t width, DType dtype, const char* activation = "silu") {
  Draw draw(31);
  NodeCase node;
  node.op = "GatedRMSNorm";
  node.inputs = {cast(draw.tensor(shape, -2, 2), dtype), cast(draw.tensor({width}, 0.5f, 1.5f), dtype),
                 cast(draw.tensor(shape, -4, 4), dtype)};
  node.attributes = {{"activation", activation}, {"epsilon", 1e-6f}};
  node.outputs = {OutputSpec{dtype, shape.size()}};
  return node;
}

TEST(GatedRmsNorm, GivesTheRuntimesAnswer) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const char* activation : {"silu", "swish", "sigmoid"}) {
      for (const std::int64_t width : {1, 7, 24}) {
        const NodeCase node = make_norm({2, 5, 7 * 24}, width, dtype, activation);
        const Outcome theirs = run_node(node, std::nullopt);
        ASSERT_EQ(theirs.error, "");
        // A handful of roundings of f32, then one to the type on either side.
        const double relative = dtype == DType::f32 ? 2e-6 : dtype == DType::f16 ? 0x1p-10 : 0x1p-7;
        for (const Level level : supported_levels()) {
          const Outcome ours = run_node(node, level, 2);
          ASSERT_EQ(ours.error, "");
          EXPECT_TRUE(close(ours[0], theirs[0], 1e-7, relative)) << level_name(level) << " width " << width;
        }
      }
    }
  }
}

TEST(GatedRmsNorm, GivesTheReleasedVector) {
  for (const ReleasedVector& vector : released_vectors("GatedRMSNorm")) {
    const Outcome ours = run_node(vector.node, best_level());
    ASSERT_EQ(ours.error, "");
    EXPECT_TRUE(close(ours[0], vector.outputs[0], 1e-6, 1e-6)) << vector.name;
  }
}

TEST(GatedRmsNorm, HasTheContractsDefaults) {
  NodeCase node = make_norm({3, 8}, 4, DType::f32);
  node.attributes.clear();
  const Outcome theirs = run_node(node, std::nullopt);
  const Outcome ours = run_node(node, best_level());
  ASSERT_EQ(theirs.error + ours.error, "");
  EXPECT_TRUE(close(ours[0], theirs[0], 1e-7, 2e-6));
}

TEST(GatedRmsNorm, TakesWhatTheRuntimeTakes) {
  NodeCase node = make_norm({3, 8}, 4, DType::f32);
  const Outcome flat = run_node(node, best_level());
  node.inputs[1]->shape = {1, 4};
  const Outcome square = run_node(node, best_level());
  ASSERT_EQ(square.error, "");
  EXPECT_TRUE(same_bits(square[0], flat[0]));
  EXPECT_EQ(run_node(make_norm({0, 8}, 4, DType::f32), best_level()).error, "");
  EXPECT_EQ(run_node(make_norm({2, 0}, 4, DType::f32), best_level()).error, "");
}

TEST(GatedRmsNorm, NamesWhatIsWrong) {
  struct Mistake {
    const char* expected;
    std::function<void(NodeCase&)> make;
  };
  const Mistake mistakes[] = {
      {"attribute activation: expected silu, swish or sigmoid, found 'tanh'",
       [](NodeCase& n) { n.attributes = {{"activation", "tanh"}}; }},
      {"attribute epsilon: expected a finite number, found inf",
       [](NodeCase& n) { n.attributes = {{"epsilon", HUGE_VALF}}; }},
      {"attribute epsilon: expected 0 or more, found -1", [](NodeCase& n) { n.attributes = {{"epsilon", -1.0f}}; }},
      {"input 0 (X): expected f32 or f16 or bf16, found f64",
       [](NodeCase& n) { n.inputs[0] = make_tensor(DType::f64, {3, 8}); }},
      {"input 2 (gate): expected X's shape = [3, 8], found [8, 3]", [](NodeCase& n) { n.inputs[2]->shape = {8, 3}; }},
      {"input 2 (gate): expected f32 as input 0 (X), found f16",
       [](NodeCase& n) { n.inputs[2] = cast(*n.inputs[2], DType::f16); }},
      {"input 0 (X): expected a last extent that is a multiple of the 5 elements of input 1 (scale), found [3, 8]",
       [](NodeCase& n) { n.inputs[1] = make_tensor(DType::f32, {5}); }},
      {"input 1 (scale): expected at least one element, found [0]",
       [](NodeCase& n) { n.inputs[1] = make_tensor(DType::f32, {0}); }},
  };
  for (const Mistake& mistake : mistakes) {
    NodeCase node = make_norm({3, 8}, 4, DType::f32);
    mistake.make(node);
    const Outcome outcome = run_node(node, best_level());
    EXPECT_THAT(outcome.error, HasSubstr(mistake.expected));
    EXPECT_THAT(outcome.error, HasSubstr("GatedRMSNorm node 'node': "));
  }
}

}  // namespace
}  // namespace sluice::ops

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/one_node.h"

namespace sluice::ops {
namespace {

using ::testing::HasSubstr;

struct ConvCase {
  std::vector<std::int32_t> offsets{0, 3, 8};
  std::int64_t channels = 37;
  std::int64_t kernel = 4;
  std::int64_t dilation = 1;
  std::int64_t capacity = 0;
  std::string activation = "silu";
  bool bias = true;
  DType dtype = DType::f32;
};

NodeCase make_node(const ConvCase& c) {
  Draw draw(7);
  const std::int64_t rows = static_cast<std::int64_t>(c.offsets.size()) - 1;
  const std::int64_t tokens = c.offsets.back();
  const std::int64_t state = (c.kernel - 1) * c.dilation;
  NodeCase node;
  node.op = "VarlenCausalConvWithState";
  node.inputs.resize(c.capacity > 0 ? 6 : 5);
  node.inputs[0] = cast(draw.tensor({tokens, c.channels}, -1, 1), c.dtype);
  node.inputs[1] = cast(draw.tensor({c.channels, 1, c.kernel}, -1, 1), c.dtype);
  node.inputs[2] = i32_tensor({rows + 1}, c.offsets);
  if (c.bias) node.inputs[3] = cast(draw.tensor({c.channels}, -1, 1), c.dtype);
  node.inputs[4] = cast(draw.tensor({rows, c.channels, state}, -1, 1), c.dtype);
  if (c.capacity > 0) {
    std::vector<std::int32_t> counts;
    for (std::int64_t row = 0; row < rows; ++row) counts.push_back(static_cast<std::int32_t>(9 * row - 1));
    node.inputs[5] = i32_tensor({rows}, counts);
  }
  node.attributes = {{"activation", c.activation}, {"dilation", c.dilation}};
  node.outputs = {OutputSpec{c.dtype, 2}, OutputSpec{c.dtype, 3}};
  if (c.capacity > 0) {
    node.attributes.push_back({"state_update_capacity", c.capacity});
    node.outputs.push_back(OutputSpec{c.dtype, 3});
  }
  return node;
}

// One rounding to the activation type: half a unit in the last place of each side, and the f32 sums' own error.
double relative_error(DType dtype) { return dtype == DType::f32 ? 1e-6 : dtype == DType::f16 ? 0x1p-10 : 0x1p-7; }

void expect_runtimes_answer(const ConvCase& c) {
  const NodeCase node = make_node(c);
  const Outcome theirs = run_node(node, std::nullopt);
  ASSERT_EQ(theirs.error, "");
  for (const Level level : supported_levels()) {
    const Outcome ours = run_node(node, level, 2);
    ASSERT_EQ(ours.error, "") << level_name(level);
    EXPECT_TRUE(close(ours[0], theirs[0], 1e-6, relative_error(c.dtype))) << level_name(level);
    for (std::size_t i = 1; i < theirs.outputs.size(); ++i) {
      EXPECT_TRUE(same_bits(ours[i], theirs[i])) << level_name(level) << " output " << i;
    }
  }
}

TEST(VarlenCausalConv, GivesTheRuntimesAnswerInEveryType) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) expect_runtimes_answer({.dtype = dtype});
}

TEST(VarlenCausalConv, GivesTheRuntimesAnswerForEveryAttribute) {
  for (const char* activation : {"none", "silu", "swish"}) {
    for (const std::int64_t kernel : {1, 2, 4, 5}) {
      for (const std::int64_t dilation : {1, 3}) {
        expect_runtimes_answer(
            {.kernel = kernel, .dilation = dilation, .activation = activation, .bias = kernel % 2 == 0});
      }
    }
  }
}

TEST(VarlenCausalConv, CapturesTheFirstTokensOfARow) {
  for (const std::int64_t capacity : {1, 4, 8}) {
    expect_runtimes_answer({.offsets = {0, 3, 4, 11}, .capacity = capacity});
  }
}

TEST(VarlenCausalConv, PassesTheStateOfAnEmptyRowThrough) { expect_runtimes_answer({.offsets = {0, 0, 5, 5, 6, 6}}); }

TEST(VarlenCausalConv, AcceptsABatchWithoutTokensOrRows) {
  const NodeCase node = make_node({.offsets = {0, 0, 0}});
  const Outcome ours = run_node(node, best_level());
  ASSERT_EQ(ours.error, "");
  EXPECT_TRUE(same_bits(ours[1], *node.inputs[4]));
  EXPECT_EQ(run_node(make_node({.offsets = {0}}), best_level()).error, "");
}

// No rows and no tokens, one channel, and a state of `taps` - 1 times the largest dilation that nothing holds.
NodeCase long_state_node(std::int64_t taps) {
  const std::int64_t dilation = std::numeric_limits<std::int32_t>::max();
  NodeCase node;
  node.op = "VarlenCausalConvWithState";
  node.inputs = {f32_tensor({0, 1}, {}), f32_tensor({1, 1, taps}, std::vector<float>(static_cast<std::size_t>(taps))),
                 i32_tensor({1}, {0}), std::nullopt, f32_tensor({0, 1, (taps - 1) * dilation}, {})};
  node.attributes = {{"dilation", dilation}};
  node.outputs = {OutputSpec{DType::f32, 2}, OutputSpec{DType::f32, 3}};
  return node;
}

TEST(VarlenCausalConv, RefusesAStateWhoseBytesCannotBeCounted) {
  const Outcome outcome = run_node(long_state_node(70), best_level());
  EXPECT_THAT(outcome.error, HasSubstr("shape [1, 257, 148176371713]: expected at most 35184372088832 elements"));
}

TEST(VarlenCausalConv, ScratchThatCannotBeHadIsAnError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's allocator ends the program instead";
#endif
  const Outcome outcome = run_node(long_state_node(60), best_level());
  if (outcome.error.empty()) GTEST_SKIP() << "this kernel promises memory that nothing has";
  EXPECT_THAT(outcome.error, HasSubstr("scratch memory: "));
  EXPECT_THAT(outcome.error, HasSubstr(" bytes could not be allocated"));
}

TEST(VarlenCausalConv, NamesWhatIsWrong) {
  struct Mistake {
    const char* expected;
    std::function<void(NodeCase&)> make;
  };
  const Mistake mistakes[] = {
      {"input 0 (input): expected rank 2 [tokens, C], found [8, 37, 1]",
       [](NodeCase& n) { n.inputs[0]->shape = {8, 37, 1}; }},
      {"input 1 (weight): expected [C, 1, K] = [37, 1, 2], found [37, 2, 2]",
       [](NodeCase& n) {
         n.inputs[1]->shape = {37, 2, 2};
         n.inputs[1]->shape[1] = 2;
       }},
      {"input 1 (weight): expected f32 as input 0 (input), found f16",
       [](NodeCase& n) { n.inputs[1] = cast(*n.inputs[1], DType::f16); }},
      {"input 4 (initial_state): expected f32 as input 0 (input), found bf16",
       [](NodeCase& n) { n.inputs[4] = cast(*n.inputs[4], DType::bf16); }},
      {"input 4 (initial_state): expected [B, C, (K - 1) * dilation] = [2, 37, 3], found [2, 3, 37]",
       [](NodeCase& n) { n.inputs[4]->shape = {2, 3, 37}; }},
      {"input 3 (bias): expected [C] = [37], found [1, 37]", [](NodeCase& n) { n.inputs[3]->shape = {1, 37}; }},
      {"input 2 (cumulative_sequence_length): expected 0 as the first offset, found 1",
       [](NodeCase& n) { n.inputs[2] = i32_tensor({3}, {1, 3, 8}); }},
      {"input 2 (cumulative_sequence_length): expected offsets that never decrease, found 3 at index 2",
       [](NodeCase& n) { n.inputs[2] = i32_tensor({4}, {0, 5, 3, 8}); }},
      {"input 2 (cumulative_sequence_length): expected the number of tokens, 8, as the last offset, found 9",
       [](NodeCase& n) { n.inputs[2] = i32_tensor({3}, {0, 3, 9}); }},
      {"input 2 (cumulative_sequence_length): expected [B + 1] offsets, found none",
       [](NodeCase& n) { n.inputs[2] = i32_tensor({0}, {}); }},
      {"input 2 (cumulative_sequence_length): expected i32, found i64",
       [](NodeCase& n) { n.inputs[2] = make_tensor(DType::i64, {3}); }},
      {"attribute activation: expected none, silu or swish, found 'relu'",
       [](NodeCase& n) { n.attributes = {{"activation", "relu"}}; }},
      {"attribute dilation: expected 1..2147483647, found 0",
       [](NodeCase& n) { n.attributes = {{"dilation", std::int64_t{0}}}; }},
      {"attribute dilation: expected an integer, found a float",
       [](NodeCase& n) { n.attributes = {{"dilation", 1.0f}}; }},
      {"attribute state_update_capacity: expected 0..8, found 9",
       [](NodeCase& n) { n.attributes = {{"state_update_capacity", std::int64_t{9}}}; }},
      {"input 5 (capture_count) is missing: state_update_capacity is not 0",
       [](NodeCase& n) { n.attributes = {{"state_update_capacity", std::int64_t{2}}}; }},
      {"input 5 (capture_count) must be left out: state_update_capacity is 0",
       [](NodeCase& n) { n.inputs.push_back(i32_tensor({2}, {1, 1})); }},
      {"attribute group_size: expected 1, as kernel_delta is not served on a CPU, found 2",
       [](NodeCase& n) { n.attributes = {{"group_size", std::int64_t{2}}}; }},
      {"input 6 (kernel_delta) must be left out: it is not served on a CPU",
       [](NodeCase& n) {
         n.inputs.resize(7);
         n.inputs[6] = f32_tensor({1}, {0});
       }},
  };
  for (const Mistake& mistake : mistakes) {
    NodeCase node = make_node({});
    mistake.make(node);
    const Outcome outcome = run_node(node, best_level());
    EXPECT_THAT(outcome.error, HasSubstr(mistake.expected));
    EXPECT_THAT(outcome.error, HasSubstr("VarlenCausalConvWithState node 'node': "));
  }
}

}  // namespace
}  // namespace sluice::ops

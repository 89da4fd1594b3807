#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/compare.h"
#include "tests/support/gated_delta_net_node.h"
#include "tests/support/one_node.h"
#include "tests/support/released_vectors.h"

namespace sluice::ops {
namespace {

using ::testing::HasSubstr;

// Values, keys and states are below 1 in magnitude and decays at most 1, so that a value is at most the tokens plus the
// state; every token adds a few roundings of sums of k_dim products to it.
double tolerance(const GatedDeltaNetCase& c) { return 8.0 * static_cast<double>(c.tokens() + c.k_dim) * 0x1p-24 * 4; }

double rounding(DType dtype) { return dtype == DType::f32 ? 1e-6 : dtype == DType::f16 ? 0x1p-10 : 0x1p-7; }

void expect_runtimes_answer(const GatedDeltaNetCase& c, const NodeCase& node) {
  const Outcome theirs = run_node(node, std::nullopt);
  ASSERT_EQ(theirs.error, "");
  for (const Level level : supported_levels()) {
    SCOPED_TRACE(level_name(level));
    const Outcome ours = run_node(node, level, 2);
    ASSERT_EQ(ours.error, "");
    EXPECT_TRUE(close(ours[0], theirs[0], tolerance(c), rounding(c.dtype)));
    for (std::size_t i = 1; i < theirs.outputs.size(); ++i) {
      EXPECT_TRUE(close(ours[i], theirs[i], tolerance(c), 1e-6)) << "output " << i;
    }
  }
}

void expect_runtimes_answer(const GatedDeltaNetCase& c) { expect_runtimes_answer(c, make_node(c)); }

TEST(GatedDeltaNet, GivesTheRuntimesAnswerInEveryMixOfTypes) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const DType gates : {DType::f32, dtype}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " with gates " + std::string(dtype_name(gates)));
      expect_runtimes_answer({.dtype = dtype, .gate_dtype = gates});
    }
  }
}

TEST(GatedDeltaNet, GivesTheRuntimesAnswerForEveryRule) {
  for (const char* rule : {"linear", "gated", "delta", "gated_delta"}) {
    for (const bool norm : {false, true}) {
      SCOPED_TRACE(rule);
      expect_runtimes_answer({.rule = rule, .gate_activation = "none", .beta_activation = "none", .qk_l2_norm = norm});
      expect_runtimes_answer({.rule = rule, .qk_l2_norm = norm, .scale = -0.7f});
    }
  }
}

TEST(GatedDeltaNet, GivesTheRuntimesAnswerForEveryGate) {
  for (const char* gate : {"none", "softplus", "qwen", "sigmoid", "kda"}) {
    for (const char* beta : {"none", "sigmoid"}) {
      SCOPED_TRACE(gate);
      expect_runtimes_answer({.gate_activation = gate, .beta_activation = beta});
    }
  }
}

// Vectors whose sum of squares is near what the normalisation adds to it show what that is.
TEST(GatedDeltaNet, GivesTheRuntimesAnswerForShortQueriesAndKeys) {
  for (const char* gate : {"none", "softplus", "sigmoid"}) {
    for (const float length : {1e-3f, 1e-6f}) {
      SCOPED_TRACE(gate);
      const GatedDeltaNetCase c{.gate_activation = gate};
      NodeCase node = make_node(c);
      for (const std::size_t i : {0, 1}) {
        for (std::size_t e = 0; e < node.inputs[i]->bytes.size() / sizeof(float); ++e) {
          float value;
          std::memcpy(&value, node.inputs[i]->bytes.data() + e * sizeof value, sizeof value);
          value *= length;
          std::memcpy(node.inputs[i]->bytes.data() + e * sizeof value, &value, sizeof value);
        }
      }
      expect_runtimes_answer(c, node);
    }
  }
}

TEST(GatedDeltaNet, GivesTheRuntimesAnswerForADecayPerKeyChannel) {
  for (const char* gate : {"none", "softplus", "sigmoid"}) {
    for (const bool bias_per_key : {false, true}) {
      expect_runtimes_answer({.gate_activation = gate, .per_key = true, .dt_bias_per_key = bias_per_key});
    }
  }
  NodeCase flat = make_node({.per_key = true, .dt_bias_per_key = true});
  const Outcome square = run_node(flat, best_level());
  flat.inputs[8]->shape = {4 * 8};
  const Outcome same = run_node(flat, best_level());
  ASSERT_EQ(same.error, "");
  EXPECT_TRUE(same_bits(same[0], square[0]));
}

TEST(GatedDeltaNet, GivesTheRuntimesAnswerInEveryLayout) {
  for (const QkvLayout layout :
       {QkvLayout::split, QkvLayout::fused, QkvLayout::dense, QkvLayout::dense_fused, QkvLayout::even}) {
    SCOPED_TRACE(static_cast<int>(layout));
    expect_runtimes_answer({.offsets = {0, 4, 8}, .layout = layout});
    expect_runtimes_answer({.offsets = {0, 4, 8}, .per_key = true, .layout = layout, .dtype = DType::f16});
  }
}

TEST(GatedDeltaNet, GivesTheRuntimesAnswerWithoutAState) {
  expect_runtimes_answer({.initial_state = false});
  expect_runtimes_answer({.offsets = {0, 4, 8}, .layout = QkvLayout::dense, .initial_state = false});
}

TEST(GatedDeltaNet, GivesTheRuntimesAnswerForSeveralChunksAndOddSizes) {
  expect_runtimes_answer({.offsets = {0, 1, 66, 66, 200}, .k_heads = 1, .v_heads = 3, .k_dim = 24, .v_dim = 17});
  expect_runtimes_answer({.offsets = {0, 130}, .k_heads = 2, .v_heads = 2, .k_dim = 128, .v_dim = 128});
}

TEST(GatedDeltaNet, CapturesWhatReplaysARow) {
  for (const std::int64_t capacity : {1, 3, 8}) {
    expect_runtimes_answer({.offsets = {0, 3, 3, 8, 14}, .capacity = capacity});
    expect_runtimes_answer({.offsets = {0, 3, 8}, .per_key = true, .capacity = capacity});
    expect_runtimes_answer({.rule = "linear", .gate_activation = "none", .capacity = capacity});
    expect_runtimes_answer({.capacity = capacity, .capture_active = false});
  }
}

TEST(GatedDeltaNet, GivesAnEmptyCapsuleWithoutCapacity) {
  NodeCase node = make_node({});
  node.outputs.push_back(OutputSpec{DType::f32, 2});
  const Outcome ours = run_node(node, best_level());
  ASSERT_EQ(ours.error, "");
  EXPECT_EQ(ours[2].shape, (Shape{2, 0}));
}

TEST(GatedDeltaNet, NeedsOnlyTheOutputsThatAreAskedFor) {
  NodeCase node = make_node({.capacity = 2});
  const Outcome all = run_node(node, best_level());
  ASSERT_EQ(all.error, "");
  node.outputs[1].reset();
  const Outcome capsule = run_node(node, best_level());
  ASSERT_EQ(capsule.error, "");
  EXPECT_TRUE(same_bits(capsule[1], all[2]));
  node.outputs.resize(1);
  const Outcome first = run_node(node, best_level());
  ASSERT_EQ(first.error, "");
  EXPECT_TRUE(same_bits(first[0], all[0]));
}

TEST(GatedDeltaNet, PassesTheStateThroughWhenThereIsNothingToDo) {
  const NodeCase node = make_node({.offsets = {0, 0, 0}});
  const Outcome ours = run_node(node, best_level());
  ASSERT_EQ(ours.error, "");
  EXPECT_TRUE(same_bits(ours[1], *node.inputs[6]));
  EXPECT_EQ(ours[0].shape, (Shape{0, 4, 6}));
  EXPECT_EQ(run_node(make_node({.offsets = {0}}), best_level()).error, "");
}

// LinearAttention of the released runtime, batch rows laid one after another and the state transposed.
TEST(GatedDeltaNet, GivesTheReleasedVectors) {
  int used = 0;
  for (const LinearAttentionVector& vector : linear_attention_vectors()) {
    if (vector.q_heads != vector.k_heads || vector.v_heads % vector.q_heads != 0 || vector.beta_broadcast) continue;
    ++used;
    NodeCase node;
    node.op = "GatedDeltaNet";
    node.inputs = {vector.query, vector.key, vector.value, vector.offsets, vector.decay, vector.beta, vector.state};
    node.attributes = {{"update_rule", vector.rule}, {"scale", vector.scale}};
    node.outputs = {OutputSpec{DType::f32, 3}, OutputSpec{DType::f32, 4}};
    const Outcome ours = run_node(node, best_level());
    ASSERT_EQ(ours.error, "") << vector.name;
    // Inputs and outputs were printed with four to seven digits.
    EXPECT_TRUE(close(ours[0], vector.output, 2e-6, 2e-6)) << vector.name;
    EXPECT_TRUE(close(ours[1], vector.final_state, 2e-6, 2e-6)) << vector.name;
  }
  EXPECT_GE(used, 10);
}

struct Mistake {
  const char* expected;
  std::function<void(NodeCase&)> make;
};

void expect_complaints(const GatedDeltaNetCase& c, std::span<const Mistake> mistakes) {
  for (const Mistake& mistake : mistakes) {
    NodeCase node = make_node(c);
    mistake.make(node);
    const Outcome outcome = run_node(node, best_level());
    EXPECT_THAT(outcome.error, HasSubstr(mistake.expected));
    EXPECT_THAT(outcome.error, HasSubstr("GatedDeltaNet node 'node': "));
  }
}

void set(NodeCase& node, const char* name, AttributeValue value) {
  std::erase_if(node.attributes, [&](const Attribute& a) { return a.name == name; });
  node.attributes.push_back({name, std::move(value)});
}

TEST(GatedDeltaNet, NamesTheAttributeThatIsWrong) {
  const Mistake mistakes[] = {
      {"attribute update_rule: expected linear, gated, delta or gated_delta, found 'gate'",
       [](NodeCase& n) { set(n, "update_rule", "gate"); }},
      {"attribute gate_activation: expected none, softplus (qwen) or sigmoid (kda), found 'tanh'",
       [](NodeCase& n) { set(n, "gate_activation", "tanh"); }},
      {"attribute beta_activation: expected none or sigmoid, found 'twice_sigmoid'",
       [](NodeCase& n) { set(n, "beta_activation", "twice_sigmoid"); }},
      {"attribute chunk_size: expected 1..2147483647, found 0",
       [](NodeCase& n) { set(n, "chunk_size", std::int64_t{0}); }},
      {"attribute chunk_size: expected 1..2147483647, found 2147483648",
       [](NodeCase& n) { set(n, "chunk_size", std::int64_t{1} << 31); }},
      {"attribute state_update_capacity: expected 0..8, found 9",
       [](NodeCase& n) { set(n, "state_update_capacity", std::int64_t{9}); }},
      {"attribute state_update_capacity: expected 0..8, found -1",
       [](NodeCase& n) { set(n, "state_update_capacity", std::int64_t{-1}); }},
      {"attribute gate_lower_bound: expected a negative number, found 0",
       [](NodeCase& n) { set(n, "gate_lower_bound", 0.0f); }},
      {"attribute scale: expected a finite number, found nan", [](NodeCase& n) { set(n, "scale", std::nanf("")); }},
      {"attribute scale: expected a float, found an integer", [](NodeCase& n) { set(n, "scale", std::int64_t{1}); }},
      {"attribute update_rule: expected a string, found a float", [](NodeCase& n) { set(n, "update_rule", 1.0f); }},
  };
  expect_complaints({}, mistakes);
}

TEST(GatedDeltaNet, NamesTheShapeThatIsWrong) {
  const Mistake mistakes[] = {
      {"input 0 (query): expected [tokens, Hq, dk] or [B, S, Hq, dk], found [8, 16]",
       [](NodeCase& n) { n.inputs[0]->shape = {8, 16}; }},
      {"input 1 (key): expected query's shape = [8, 2, 8], found [8, 4, 4]",
       [](NodeCase& n) { n.inputs[1]->shape = {8, 4, 4}; }},
      {"input 1 (key): expected rank 3 like query, found [1, 8, 2, 8]",
       [](NodeCase& n) { n.inputs[1]->shape = {1, 8, 2, 8}; }},
      {"input 2 (value): expected a number of value heads that is a multiple of the 2 query heads of input 0 (query), "
       "found 3",
       [](NodeCase& n) { n.inputs[2]->shape = {8, 3, 8}; }},
      {"input 2 (value): expected [.., Hv, dv] = [8, 4, 12], found [4, 4, 12]",
       [](NodeCase& n) { n.inputs[2]->shape = {4, 4, 12}; }},
      {"input 2 (value): Hv must be at least 1 and fit 32 bits, found 0 in [8, 0, 6]",
       [](NodeCase& n) { n.inputs[2] = f32_tensor({8, 0, 6}, {}); }},
      {"input 2 (value) is missing: key and value come together", [](NodeCase& n) { n.inputs[2].reset(); }},
      {"input 2 (value) must be left out: key and value come together", [](NodeCase& n) { n.inputs[1].reset(); }},
      {"input 4 (decay): expected [.., Hv] = [8, 4] or [.., Hv, dk] = [8, 4, 8], found [8, 2, 2]",
       [](NodeCase& n) { n.inputs[4]->shape = {8, 2, 2}; }},
      {"input 5 (beta): expected [.., Hv] = [8, 4], found [4, 8]", [](NodeCase& n) { n.inputs[5]->shape = {4, 8}; }},
      {"input 6 (initial_state): expected [B, Hv, dv, dk] = [2, 4, 6, 8], found [2, 4, 8, 6]",
       [](NodeCase& n) { n.inputs[6]->shape = {2, 4, 8, 6}; }},
      {"input 7 (a_log): expected [Hv] = [4], found [4, 1]", [](NodeCase& n) { n.inputs[7]->shape = {4, 1}; }},
      {"input 8 (dt_bias): expected [Hv] = [4], found [4, 8]",
       [](NodeCase& n) { n.inputs[8] = make_tensor(DType::f32, {4, 8}); }},
      {"input 10 (state_update_active): expected [1] = [1], found [2]",
       [](NodeCase& n) { n.inputs[10] = i32_tensor({2}, {1, 1}); }},
  };
  expect_complaints({}, mistakes);
  const Mistake per_key[] = {
      {"input 8 (dt_bias): expected [Hv] = [4], [Hv, dk] = [4, 8] or [Hv * dk], found [8, 4]",
       [](NodeCase& n) { n.inputs[8]->shape = {8, 4}; }},
      {"input 7 (a_log): expected [Hv] = [4], found [4, 8]",
       [](NodeCase& n) { n.inputs[7] = make_tensor(DType::f32, {4, 8}); }},
  };
  expect_complaints({.per_key = true, .dt_bias_per_key = true}, per_key);
}

TEST(GatedDeltaNet, NamesWhatIsWrongWithAFusedQuery) {
  const Mistake mistakes[] = {
      {"input 0 (query): expected packed [tokens, width] or [B, S, width] without key and value, found [8, 1, 1, 56]",
       [](NodeCase& n) { n.inputs[0]->shape = {8, 1, 1, 56}; }},
      {"input 0 (query): expected a width of 2 * Hk * dk + Hv * dv with Hv a multiple of Hk, for Hv 4, dv 6, dk 8 of "
       "input 6 (initial_state); found 57",
       [](NodeCase& n) { n.inputs[0] = make_tensor(DType::f32, {8, 57}); }},
      {"input 0 (query): expected a width of 2 * Hk * dk + Hv * dv with Hv a multiple of Hk, for Hv 4, dv 6, dk 8 of "
       "input 6 (initial_state); found 24",
       [](NodeCase& n) { n.inputs[0] = make_tensor(DType::f32, {8, 24}); }},
      {"input 6 (initial_state) is missing: a packed query takes Hv, dv and dk from it",
       [](NodeCase& n) { n.inputs[6].reset(); }},
  };
  expect_complaints({.layout = QkvLayout::fused}, mistakes);
}

TEST(GatedDeltaNet, NamesTheTypeThatIsWrong) {
  const Mistake mistakes[] = {
      {"input 0 (query): expected f32 or f16 or bf16, found i32",
       [](NodeCase& n) { n.inputs[0] = make_tensor(DType::i32, {8, 2, 8}); }},
      {"input 0 (query): expected f32 or f16 or bf16, found f64",
       [](NodeCase& n) {
         for (const std::size_t i : {0u, 1u, 2u}) n.inputs[i] = make_tensor(DType::f64, {8, 2, 8});
         n.outputs[0]->dtype = DType::f64;
       }},
      {"input 1 (key): expected f32 as input 0 (query), found f16",
       [](NodeCase& n) { n.inputs[1] = cast(*n.inputs[1], DType::f16); }},
      {"input 4 (decay): expected f32, found f16", [](NodeCase& n) { n.inputs[4] = cast(*n.inputs[4], DType::f16); }},
      {"input 6 (initial_state): expected f32, found bf16",
       [](NodeCase& n) { n.inputs[6] = cast(*n.inputs[6], DType::bf16); }},
      {"input 7 (a_log): expected f32, found f16", [](NodeCase& n) { n.inputs[7] = cast(*n.inputs[7], DType::f16); }},
      {"input 8 (dt_bias): expected f32, found f16", [](NodeCase& n) { n.inputs[8] = cast(*n.inputs[8], DType::f16); }},
      {"input 3 (cu_seqlens): expected i32, found i64",
       [](NodeCase& n) { n.inputs[3] = make_tensor(DType::i64, {3}); }},
  };
  expect_complaints({}, mistakes);
  const Mistake half[] = {
      {"input 5 (beta): expected f16 as input 4 (decay), found f32",
       [](NodeCase& n) { n.inputs[5] = cast(*n.inputs[5], DType::f32); }},
  };
  expect_complaints({.dtype = DType::f16, .gate_dtype = DType::f16}, half);
}

TEST(GatedDeltaNet, NamesAnInputThatTheRuleLacksOrDoesNotUse) {
  const Mistake mistakes[] = {
      {"input 4 (decay) is missing: update_rule gated_delta needs it", [](NodeCase& n) { n.inputs[4].reset(); }},
      {"input 5 (beta) is missing: update_rule gated_delta needs it", [](NodeCase& n) { n.inputs[5].reset(); }},
      {"input 4 (decay) must be left out: update_rule delta does not use it",
       [](NodeCase& n) { set(n, "update_rule", "delta"); }},
      {"input 5 (beta) must be left out: update_rule gated does not use it",
       [](NodeCase& n) { set(n, "update_rule", "gated"); }},
      {"input 7 (a_log) is missing: gate_activation needs it", [](NodeCase& n) { n.inputs[7].reset(); }},
      {"input 8 (dt_bias) is missing: gate_activation needs it", [](NodeCase& n) { n.inputs[8].reset(); }},
      {"input 7 (a_log) must be left out: gate_activation none does not use it",
       [](NodeCase& n) { set(n, "gate_activation", "none"); }},
      {"input 9 (capture_count) is missing: state_update_capacity is not 0",
       [](NodeCase& n) { set(n, "state_update_capacity", std::int64_t{2}); }},
      {"input 9 (capture_count) must be left out: state_update_capacity is 0",
       [](NodeCase& n) { n.inputs[9] = i32_tensor({2}, {1, 1}); }},
  };
  expect_complaints({}, mistakes);
}

TEST(GatedDeltaNet, RefusesMalformedOffsets) {
  const Mistake mistakes[] = {
      {"input 3 (cu_seqlens): expected 0 as the first offset, found 1",
       [](NodeCase& n) { n.inputs[3] = i32_tensor({3}, {1, 3, 8}); }},
      {"input 3 (cu_seqlens): expected 0 as the first offset, found -1",
       [](NodeCase& n) { n.inputs[3] = i32_tensor({3}, {-1, 3, 8}); }},
      {"input 3 (cu_seqlens): expected offsets that never decrease, found 8 at index 2",
       [](NodeCase& n) { n.inputs[3] = i32_tensor({3}, {0, 9, 8}); }},
      {"input 3 (cu_seqlens): expected the number of tokens, 8, as the last offset, found 2147483647",
       [](NodeCase& n) { n.inputs[3] = i32_tensor({3}, {0, 3, 2147483647}); }},
      {"input 3 (cu_seqlens): expected [B + 1] offsets, found none",
       [](NodeCase& n) { n.inputs[3] = i32_tensor({0}, {}); }},
      {"input 3 (cu_seqlens): expected rank 1 [B + 1], found [1, 3]", [](NodeCase& n) { n.inputs[3]->shape = {1, 3}; }},
      {"input 6 (initial_state): expected [B, Hv, dv, dk] = [3, 4, 6, 8], found [2, 4, 6, 8]",
       [](NodeCase& n) { n.inputs[3] = i32_tensor({4}, {0, 3, 8, 8}); }},
  };
  expect_complaints({}, mistakes);
  const Mistake dense[] = {{"input 3 (cu_seqlens) must be left out: input 0 (query) is dense, [B, S, ..]",
                            [](NodeCase& n) { n.inputs[3] = i32_tensor({3}, {0, 4, 8}); }}};
  expect_complaints({.offsets = {0, 4, 8}, .layout = QkvLayout::dense}, dense);
  const Mistake even[] = {
      {"input 0 (query): expected a number of tokens that the 3 rows of input 6 (initial_state) divide, found 8",
       [](NodeCase& n) { n.inputs[6] = make_tensor(DType::f32, {3, 4, 6, 8}); }},
      {"input 6 (initial_state) is missing: without cu_seqlens it says how many rows there are",
       [](NodeCase& n) { n.inputs[6].reset(); }},
  };
  expect_complaints({.offsets = {0, 4, 8}, .layout = QkvLayout::even}, even);
}

}  // namespace
}  // namespace sluice::ops

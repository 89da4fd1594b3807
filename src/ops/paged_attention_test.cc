#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/one_node.h"
#include "tests/support/paged_attention_node.h"

namespace sluice::ops {
namespace {

using ::testing::HasSubstr;

void expect_definition(const PagedCase& c) {
  const NodeCase node = make_paged(c);
  const PagedAnswer answer = define_paged(c, node);
  // Half units in the last place of the two types the result passes through, twice: key and value, and the output.
  const auto unit = [](DType d) { return d == DType::f32 ? 0.0 : d == DType::f16 ? 0x1p-11 : 0x1p-8; };
  const double absolute = 2e-5 + 8 * unit(c.cache) + 2 * unit(c.dtype);
  for (const Level level : supported_levels()) {
    SCOPED_TRACE(level_name(level));
    const Outcome ours = run_node(node, level, 2);
    ASSERT_EQ(ours.error, "");
    EXPECT_TRUE(close(cast(ours[0], DType::f32), answer.output, absolute, 1e-5));
    EXPECT_TRUE(close(cast(ours[1], DType::f32), answer.key_cache, 2e-6 + 4 * unit(c.cache), 1e-6));
    EXPECT_TRUE(close(cast(ours[2], DType::f32), answer.value_cache, 0, 0));
  }
}

TEST(PagedAttention, FollowsItsDefinitionInEveryMixOfTypes) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const DType cache : {DType::f32, DType::f16, DType::bf16}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " over " + std::string(dtype_name(cache)));
      expect_definition({.dtype = dtype, .cache = cache});
      expect_definition({.rotary_dim = 8, .norms = true, .sink = true, .fused = true, .dtype = dtype, .cache = cache});
    }
  }
}

TEST(PagedAttention, FollowsItsDefinitionForEveryAttribute) {
  expect_definition({.scale = 0.3f});
  expect_definition({.softcap = 1.5f});
  expect_definition({.window = 1});
  expect_definition({.softcap = 2.0f, .window = 4});
  expect_definition({.rotary_dim = 16});
  expect_definition({.rotary_dim = 8, .rotary_offset = 6});
  expect_definition({.rotary_dim = 8, .interleaved = true});
}

TEST(PagedAttention, FollowsItsDefinitionForEveryInput) {
  expect_definition({.norms = true});
  expect_definition({.sink = true});
  expect_definition({.slots = true});
  expect_definition({.fused = true});
  expect_definition({.metadata = true});
  expect_definition({.heads = 5, .kv_heads = 1, .head_dim = 24});
}

TEST(PagedAttention, TakesAnyBlockSizeAndEmptyRows) {
  for (const std::int64_t block_size : {1, 3, 16, 40}) expect_definition({.block_size = block_size});
  expect_definition({.offsets = {0, 0, 4, 4}, .past = {7, 2, 0}});
}

TEST(PagedAttention, AcceptsABatchWithoutTokensOrRows) {
  EXPECT_EQ(run_node(make_paged({.offsets = {0, 0, 0}, .past = {3, 0}}), best_level()).error, "");
  EXPECT_EQ(run_node(make_paged({.offsets = {0}, .past = {}}), best_level()).error, "");
}

// GroupQueryAttention of the runtime over the same keys and values, laid out [heads, positions, head_dim].
TEST(PagedAttention, GivesTheRuntimesGroupQueryAttention) {
  for (const DType dtype : {DType::f32, DType::f16}) {
    for (const std::int32_t past : {0, 17}) {
      const std::int32_t fresh = past == 0 ? 21 : 1;
      const PagedCase c{.offsets = {0, fresh}, .past = {past}, .block_size = 8, .dtype = dtype, .cache = dtype};
      const NodeCase node = make_paged(c);
      const std::vector<std::int32_t> table = to_ints(*node.inputs[7]);
      NodeCase peer;
      peer.op = "GroupQueryAttention";
      peer.inputs.resize(7);
      for (const std::size_t i : {0u, 1u, 2u}) {
        peer.inputs[i] = node.inputs[i];
        peer.inputs[i]->shape.insert(peer.inputs[i]->shape.begin(), 1);
      }
      for (const std::size_t i : {3u, 4u}) {
        const std::vector<float> cache = to_floats(*node.inputs[i]);
        std::vector<float> dense;
        for (std::int64_t h = 0; h < c.kv_heads; ++h) {
          for (std::int64_t p = 0; p < past; ++p) {
            const std::int64_t slot =
                table[static_cast<std::size_t>(p / c.block_size)] * c.block_size + p % c.block_size;
            const float* from = cache.data() + (slot * c.kv_heads + h) * c.head_dim;
            dense.insert(dense.end(), from, from + c.head_dim);
          }
        }
        peer.inputs[i] = cast(f32_tensor({1, c.kv_heads, past, c.head_dim}, dense), dtype);
      }
      peer.inputs[5] = i32_tensor({1}, {past + fresh - 1});
      peer.inputs[6] = i32_tensor({1}, {past + fresh});
      peer.initializers = {6};
      peer.attributes = {{"num_heads", c.heads}, {"kv_num_heads", c.kv_heads}};
      peer.outputs = {OutputSpec{dtype, 3}, OutputSpec{dtype, 4}, OutputSpec{dtype, 4}};
      const Outcome theirs = run_node(peer, std::nullopt);
      ASSERT_EQ(theirs.error, "");
      TestTensor expected = theirs[0];
      expected.shape.erase(expected.shape.begin());
      const Outcome ours = run_node(node, best_level());
      ASSERT_EQ(ours.error, "");
      EXPECT_TRUE(close(ours[0], expected, dtype == DType::f32 ? 2e-6 : 4 * 0x1p-11, 1e-5));
    }
  }
}

// Without outputs 1 and 2 the caches themselves are written.
TEST(PagedAttention, WritesTheGivenCachesWhenTheOutputsAreLeftOut) {
  NodeCase node = make_paged({});
  const Outcome copied = run_node(node, best_level());
  ASSERT_EQ(copied.error, "");
  node.outputs.resize(1);
  const std::string model = serialize_case(node);
  Ort::Session session(test_environment(), model.data(), model.size(), session_options(best_level()));
  Ort::IoBinding binding(session);
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i]) binding.BindInput(("i" + std::to_string(i)).c_str(), as_value(*node.inputs[i]));
  }
  binding.BindOutput("o0", Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault));
  session.Run(Ort::RunOptions{nullptr}, binding);
  EXPECT_TRUE(same_bits(from_value(binding.GetOutputValues()[0]), copied[0]));
  EXPECT_TRUE(same_bits(*node.inputs[3], copied[1]));
  EXPECT_TRUE(same_bits(*node.inputs[4], copied[2]));
}

struct Mistake {
  const char* expected;
  std::function<void(NodeCase&)> make;
};

void expect_complaints(const PagedCase& c, std::span<const Mistake> mistakes) {
  for (const Mistake& mistake : mistakes) {
    NodeCase node = make_paged(c);
    mistake.make(node);
    const Outcome outcome = run_node(node, best_level());
    EXPECT_THAT(outcome.error, HasSubstr(mistake.expected));
    EXPECT_THAT(outcome.error, HasSubstr("PagedAttention node 'node': "));
  }
}

void set(NodeCase& node, const char* name, AttributeValue value) {
  std::erase_if(node.attributes, [&](const Attribute& a) { return a.name == name; });
  node.attributes.push_back({name, std::move(value)});
}

TEST(PagedAttention, NamesTheAttributeThatIsWrong) {
  const Mistake mistakes[] = {
      {"attribute num_heads is missing", [](NodeCase& n) { n.attributes.clear(); }},
      {"attribute num_heads: expected a multiple of kv_num_heads, 3, found 4",
       [](NodeCase& n) { set(n, "kv_num_heads", std::int64_t{3}); }},
      {"attribute kv_num_heads: expected 1..2147483647, found 0",
       [](NodeCase& n) { set(n, "kv_num_heads", std::int64_t{0}); }},
      {"attribute softcap: expected 0 or more, found -1", [](NodeCase& n) { set(n, "softcap", -1.0f); }},
      {"attribute scale: expected a finite number, found inf", [](NodeCase& n) { set(n, "scale", HUGE_VALF); }},
      {"attribute local_window_size: expected -1 or at least 1, found 0",
       [](NodeCase& n) { set(n, "local_window_size", std::int64_t{0}); }},
      {"attribute is_causal: expected 1 (0 is not served), found 0",
       [](NodeCase& n) { set(n, "is_causal", std::int64_t{0}); }},
      {"attribute qk_norm_epsilon: expected more than 0, found 0",
       [](NodeCase& n) { set(n, "qk_norm_epsilon", 0.0f); }},
      {"attribute k_quant_type: expected 'NONE' (quantised caches are not served), found 'PER_TENSOR'",
       [](NodeCase& n) { set(n, "k_quant_type", "PER_TENSOR"); }},
      {"attribute v_cache_dtype: expected '' (quantised caches are not served), found 'float8e4m3fn'",
       [](NodeCase& n) { set(n, "v_cache_dtype", "float8e4m3fn"); }},
      {"attribute kv_cache_layout: expected 'SEPARATE' (latent caches are not served), found 'LATENT'",
       [](NodeCase& n) { set(n, "kv_cache_layout", "LATENT"); }},
      {"attribute v_head_size: expected 0 or the head size, 16, found 8",
       [](NodeCase& n) { set(n, "v_head_size", std::int64_t{8}); }},
      {"attribute rotary_offset: expected 0 or more, found -8",
       [](NodeCase& n) { set(n, "rotary_offset", std::int64_t{-8}); }},
  };
  expect_complaints({}, mistakes);
}

TEST(PagedAttention, NamesTheShapeOrTypeThatIsWrong) {
  const Mistake mistakes[] = {
      {"input 0 (query): expected [tokens, num_heads * head size] = [9, 64], found [9, 32]",
       [](NodeCase& n) { n.inputs[0] = make_tensor(DType::f32, {9, 32}); }},
      {"input 0 (query): expected [tokens, (num_heads + 2 * kv_num_heads) * head size] = [9, 128], found [9, 64]",
       [](NodeCase& n) {
         n.inputs[1].reset();
         n.inputs[2].reset();
       }},
      {"input 1 (key) and input 2 (value) come together or not at all: input 2 (value) is missing",
       [](NodeCase& n) { n.inputs[2].reset(); }},
      {"input 1 (key): expected [tokens, kv_num_heads * head size] = [9, 32], found [32, 9]",
       [](NodeCase& n) { n.inputs[1]->shape = {32, 9}; }},
      {"input 2 (value): expected f32 as input 0 (query), found f16",
       [](NodeCase& n) { n.inputs[2] = cast(*n.inputs[2], DType::f16); }},
      {"input 3 (key_cache): expected [num_blocks, block_size, kv_num_heads, head size] = [14, 4, 2, 16], found "
       "[14, 4, 4, 16]",
       [](NodeCase& n) { n.inputs[3] = n.inputs[4] = make_tensor(DType::f32, {14, 4, 4, 16}); }},
      {"input 4 (value_cache): expected key_cache's shape = [14, 4, 2, 16], found [14, 4, 2, 8]",
       [](NodeCase& n) { n.inputs[4] = make_tensor(DType::f32, {14, 4, 2, 8}); }},
      {"input 4 (value_cache) is missing: kv_cache_layout is SEPARATE", [](NodeCase& n) { n.inputs[4].reset(); }},
      {"input 4 (value_cache): expected f32 as input 3 (key_cache), found f16",
       [](NodeCase& n) { n.inputs[4] = cast(*n.inputs[4], DType::f16); }},
      {"input 6 (past_seqlens): expected [B] = [3], found [4]",
       [](NodeCase& n) { n.inputs[6] = i32_tensor({4}, {0, 1, 2, 3}); }},
      {"input 7 (block_table): expected [B, blocks] = [3, 4], found [4, 4]",
       [](NodeCase& n) { n.inputs[7] = make_tensor(DType::i32, {4, 4}); }},
      {"input 10 (slot_mapping): expected [tokens] = [9], found [8]",
       [](NodeCase& n) { n.inputs[10] = make_tensor(DType::i32, {8}); }},
      {"input 11 (head_sink): expected [num_heads] = [4], found [2]",
       [](NodeCase& n) { n.inputs[11] = make_tensor(DType::f32, {2}); }},
      {"input 12 (q_norm_weight) and input 13 (k_norm_weight) come together or not at all: input 13 (k_norm_weight) is "
       "missing",
       [](NodeCase& n) { n.inputs[12] = make_tensor(DType::f32, {16}); }},
      {"input 14 (k_scale) must be left out: quantised caches are not served",
       [](NodeCase& n) { n.inputs[14] = make_tensor(DType::f32, {1}); }},
      {"input 16 (attention_metadata): expected [2] or [3], found [4]",
       [](NodeCase& n) { n.inputs[16] = make_tensor(DType::i32, {4}); }},
      {"input 8 (cos_cache) is missing: do_rotary needs it", [](NodeCase& n) { set(n, "do_rotary", std::int64_t{1}); }},
      {"input 8 (cos_cache) and input 9 (sin_cache) come together or not at all: input 9 (sin_cache) is missing",
       [](NodeCase& n) { n.inputs[8] = make_tensor(DType::f32, {64, 4}); }},
  };
  expect_complaints({}, mistakes);
  const Mistake rotary[] = {
      {"input 8 (cos_cache): expected 1..8 columns for a head size of 16 and rotary_offset 0, found 9",
       [](NodeCase& n) { n.inputs[8] = n.inputs[9] = make_tensor(DType::f32, {64, 9}); }},
      {"input 8 (cos_cache): expected a row for each of 12 positions of row 1, found 11",
       [](NodeCase& n) { n.inputs[8] = n.inputs[9] = make_tensor(DType::f32, {11, 4}); }},
  };
  expect_complaints({.rotary_dim = 8}, rotary);
}

TEST(PagedAttention, RefusesIndicesThatWouldLeaveTheirTensors) {
  const auto edit = [](std::size_t input, std::size_t element, std::int32_t value) {
    return [=](NodeCase& n) { n.inputs[input]->data<std::int32_t>()[element] = value; };
  };
  const Mistake mistakes[] = {
      {"input 5 (cumulative_sequence_length): expected offsets that never decrease, found 4 at index 2", edit(5, 2, 4)},
      {"input 5 (cumulative_sequence_length): expected the number of tokens, 9, as the last offset, found 10",
       edit(5, 3, 10)},
      {"input 6 (past_seqlens): expected lengths of at least 0, found -1 for row 2", edit(6, 2, -1)},
      {"input 6 (past_seqlens): expected at most 16 positions (blocks a row times block size), found 17 in row 1",
       edit(6, 1, 16)},
      {"input 6 (past_seqlens): expected at most 16 positions (blocks a row times block size), found 2147483648 in row "
       "1",
       edit(6, 1, 2147483647)},
      {"input 7 (block_table): expected a block for position 0 of row 0, found -1 at column 0", edit(7, 0, -1)},
      {"input 7 (block_table): expected a block for position 4 of row 1, found -1 at column 1", edit(7, 5, -1)},
      {"input 7 (block_table): expected blocks from 0 to below 14, found 17 in row 2 at column 1", edit(7, 9, 17)},
  };
  expect_complaints({}, mistakes);
  const Mistake slots[] = {
      {"input 10 (slot_mapping): expected slots from -1 to below 56, found 68 for token 3", edit(10, 3, 68)},
      {"input 10 (slot_mapping): expected slots from -1 to below 56, found -2 for token 3", edit(10, 3, -2)},
  };
  expect_complaints({.slots = true}, slots);
}

TEST(PagedAttention, RefusesACacheThatIsAConstant) {
  NodeCase node = make_paged({});
  node.initializers = {3};
  EXPECT_THAT(
      run_node(node, best_level()).error,
      HasSubstr("PagedAttention node 'node': input 3 (key_cache): expected a cache to write to, found a constant"));
}

}  // namespace
}  // namespace sluice::ops

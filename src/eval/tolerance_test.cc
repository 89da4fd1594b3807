#include "eval/tolerance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/golden.h"
#include "weights/weight_source.h"

namespace sluice {
namespace {

Manifest manifest_of(const HybridConfig& c) {
  Manifest m;
  m.model.layers = c.layers;
  m.model.hidden = c.hidden;
  m.model.vocab = c.vocab;
  m.model.heads = c.heads;
  m.model.kv_heads = c.kv_heads;
  m.model.head_dim = c.head_dim;
  m.model.linear_k_heads = c.linear_k_heads;
  m.model.linear_v_heads = c.linear_v_heads;
  m.model.linear_k_dim = c.linear_k_dim;
  m.model.linear_v_dim = c.linear_v_dim;
  m.model.conv_kernel = c.conv_kernel;
  for (std::int64_t i = 0; i < c.layers; ++i) {
    m.model.layer_kinds.push_back(c.is_linear(i) ? "linear_attention" : "full_attention");
  }
  return m;
}

class GoldenTolerance : public testing::TestWithParam<std::string> {};

// The measured noise of a correct float32 computation must pass, and the smallest effect of 10 % noise on a single
// weight must not.
TEST_P(GoldenTolerance, lies_between_float_noise_and_a_wrong_weight) {
  const golden::Case golden(GetParam());
  const ModelSource model = open_model(golden.path);
  const Tolerance t = derive_tolerance({manifest_of(model.config), DType::f32, 130, golden.max_logit(), {}});
  const double noise = golden.noise("fp32_vs_fp64");
  const double wrong = golden.meta.at("sensitivity", "meta").at("min", "sensitivity").as_number("min");
  EXPECT_GT(t.logits, 2 * noise) << t.formula;
  EXPECT_LT(t.logits, wrong / 4) << t.formula;
}

INSTANTIATE_TEST_SUITE_P(, GoldenTolerance, testing::ValuesIn(golden::cases()),
                         [](const auto& test) { return golden::test_name(test.param); });

TEST(Tolerance, is_the_formula_it_states) {
  Manifest m;
  m.model.layers = 1;
  m.model.hidden = 10;
  m.model.heads = 2;
  m.model.head_dim = 5;
  m.model.layer_kinds = {"full_attention"};
  WeightInfo down;
  down.canonical = "layers.0.mlp.down";
  down.shape = {10, 30};
  m.weights_index = {down};
  // Sums: head 10, projections 10 + 10, attention 5 + 2 * 7, output 10, down 30.
  const double walk = std::sqrt(16 * 0x1p-48 + (10 + 10 + 19 + 10 + 10 + 30) * 0x1p-48);
  const Tolerance t = derive_tolerance({m, DType::f32, 7, 3.0, {}});
  EXPECT_DOUBLE_EQ(t.logits, 16 * walk * 3);
  EXPECT_DOUBLE_EQ(t.of_state("conv"), 16 * walk);
  EXPECT_THAT(t.formula, testing::HasSubstr("16 results stored"));
  EXPECT_THAT(t.formula, testing::HasSubstr("89 terms summed"));
  m.weights_index[0].shape = {30, 10};  // stored the other way round
  EXPECT_DOUBLE_EQ(derive_tolerance({m, DType::f32, 7, 3.0, {}}).logits, 16 * walk * 3);
}

Manifest four_layers(DType activation) {
  Manifest m;
  m.model.layers = 4;
  m.model.hidden = 64;
  m.activation = activation;
  return m;
}

TEST(Tolerance, grows_with_coarser_activations_and_rounded_weights) {
  const auto logits = [&](DType activation, DType weights) {
    return derive_tolerance({four_layers(activation), weights, 10, 1, {}}).logits;
  };
  EXPECT_LT(logits(DType::f32, DType::f32), logits(DType::f32, DType::f16));
  EXPECT_LT(logits(DType::f32, DType::f16), logits(DType::f16, DType::f16));
  EXPECT_LT(logits(DType::f16, DType::f16), logits(DType::bf16, DType::f16));
}

TEST(Tolerance, scales_measured_noise_by_the_roundings_of_other_dtypes) {
  const RoundingNoise noise{1e-4, {{"conv", 1e-5}}};
  const Manifest f32 = four_layers(DType::f32), f16 = four_layers(DType::f16);
  const Tolerance single = derive_tolerance({f32, DType::f32, 10, 1, noise});
  EXPECT_DOUBLE_EQ(single.logits, 8e-4);
  EXPECT_DOUBLE_EQ(single.of_state("conv"), 16e-5);
  const double ratio =
      derive_tolerance({f16, DType::f16, 10, 1, {}}).logits / derive_tolerance({f32, DType::f32, 10, 1, {}}).logits;
  const Tolerance half = derive_tolerance({f16, DType::f16, 10, 1, noise});
  EXPECT_DOUBLE_EQ(half.logits, 8e-4 * ratio);
  EXPECT_DOUBLE_EQ(half.of_state("conv"), 16e-5 * ratio);
  EXPECT_THAT(half.formula, testing::HasSubstr("0.0001, the f32 rounding noise"));
}

TEST(Tolerance, of_two_rounded_sides_is_that_of_two_independent_walks) {
  const RoundingNoise noise{1e-3, {{"conv", 1e-5}}};
  const Manifest m = four_layers(DType::f32);
  for (const auto& measured : {std::optional<RoundingNoise>(), std::optional<RoundingNoise>(noise)}) {
    const Tolerance exact = derive_tolerance({m, DType::f32, 10, 1, measured});
    const Tolerance rounded = derive_tolerance({m, DType::f32, 10, 1, measured, true});
    EXPECT_DOUBLE_EQ(rounded.logits, std::sqrt(2.0) * exact.logits);
    EXPECT_DOUBLE_EQ(rounded.of_state("conv"), std::sqrt(2.0) * exact.of_state("conv"));
    EXPECT_DOUBLE_EQ(rounded.of_state("key"), std::sqrt(2.0) * exact.of_state("key"));
    EXPECT_THAT(rounded.formula, testing::StartsWith("sqrt(2), as both sides round, x "));
  }
}

// Few tokens may show little noise: what is allowed without a measurement is allowed with one.
TEST(Tolerance, of_logits_never_falls_below_the_unmeasured_one) {
  for (const DType activation : {DType::f32, DType::f16}) {
    const Manifest m = four_layers(activation);
    const Tolerance plain = derive_tolerance({m, DType::f32, 10, 20, {}});
    const Tolerance lucky = derive_tolerance({m, DType::f32, 10, 20, RoundingNoise{1e-9, {{"conv", 0}}}});
    EXPECT_DOUBLE_EQ(lucky.logits, plain.logits);
    EXPECT_THAT(lucky.formula, testing::HasSubstr(plain.formula + ", above 8 x 1e-09, the f32 rounding noise"));
    EXPECT_DOUBLE_EQ(lucky.of_state("conv"), 4 * unit_roundoff(activation));
  }
}

}  // namespace
}  // namespace sluice

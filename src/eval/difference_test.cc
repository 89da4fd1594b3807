#include "eval/difference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace sluice {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(KlDivergence, is_that_of_the_softmax_distributions) {
  // p = (1/4, 3/4), q = (1/2, 1/2): 1/4 ln(1/2) + 3/4 ln(3/2)
  const std::array<float, 2> p{0.0f, std::log(3.0f)}, q{7.0f, 7.0f};
  const double expected = 0.25 * std::log(0.5) + 0.75 * std::log(1.5);
  EXPECT_NEAR(kl_divergence(p, q), expected, 1e-7);  // ln 3 rounded to f32
}

TEST(KlDivergence, of_equal_rows_is_zero_and_large_logits_do_not_overflow) {
  const std::array<float, 3> p{1e4f, -1e4f, 3.0f};
  EXPECT_EQ(kl_divergence(p, p), 0.0);
  const std::array<float, 3> shifted{1e4f + 64, -1e4f + 64, 67.0f};
  EXPECT_NEAR(kl_divergence(p, shifted), 0.0, 1e-12);
  const std::array<float, 3> other{-1e4f, 1e4f, 3.0f};
  EXPECT_NEAR(kl_divergence(p, other), 2e4, 1e-6);
}

TEST(Argmax, takes_the_lower_of_equals_and_never_a_nan) {
  EXPECT_EQ(argmax(std::array{1.0f, 3.0f, 3.0f}), 1);
  EXPECT_EQ(argmax(std::array{kNaN, -5.0f, kNaN, -4.0f}), 3);
  EXPECT_EQ(argmax(std::array{kNaN, kNaN}), -1);
  EXPECT_EQ(argmax({}), -1);
}

TEST(LogitsComparison, finds_the_worst_value_and_the_first_divergence) {
  LogitsComparison c;
  const std::array<float, 3> base{0.0f, 1.0f, 2.0f};
  c.add("a", 0, base, std::array{0.0f, 1.0f, 2.0f});
  c.add("a", 1, base, std::array{0.25f, 1.0f, 2.0f});
  c.add("b", 0, base, std::array{0.0f, 1.0f, 2.5f});
  const LogitsDifference d = c.result(0.125);
  EXPECT_EQ(d.rows, 3);
  EXPECT_EQ(d.max_abs, 0.5);
  EXPECT_DOUBLE_EQ(d.mean_abs, 0.75 / 9);
  EXPECT_EQ(d.max_logit, 2.0);
  EXPECT_EQ(d.worst->sequence, "b");
  EXPECT_EQ(d.worst->token, 2);
  EXPECT_EQ(d.first_divergence->sequence, "a");
  EXPECT_EQ(d.first_divergence->position, 1);
  EXPECT_EQ(d.first_divergence->candidate, 0.25);
  EXPECT_EQ(d.agreed, 3);
  EXPECT_GT(d.mean_kl, 0);
  EXPECT_GE(d.max_kl, d.mean_kl);
  EXPECT_EQ(d.outside, 2);
  EXPECT_EQ(c.result(0.5).first_divergence, std::nullopt);
  EXPECT_EQ(c.result(0.5).outside, 0);
}

TEST(LogitsComparison, shows_disagreements_with_the_margin_of_the_baseline) {
  LogitsComparison c;
  for (int i = 0; i < 40; ++i) c.add("s", i, std::array{1.0f, 1.5f}, std::array{1.25f, 1.0f});
  const LogitsDifference d = c.result(1);
  EXPECT_EQ(d.disagreed, 40);
  EXPECT_EQ(d.disagreements.size(), LogitsDifference::kListed);
  EXPECT_EQ(d.disagreements[3].position, 3);
  EXPECT_EQ(d.disagreements[3].baseline_token, 1);
  EXPECT_EQ(d.disagreements[3].candidate_token, 0);
  EXPECT_EQ(d.disagreements[3].margin, 0.5);
  EXPECT_EQ(d.largest_margin, 0.5);
  EXPECT_EQ(d.agreement(), 0.0);
}

TEST(LogitsComparison, holds_a_token_against_the_candidates_own_margin) {
  LogitsComparison c;
  c.add_token("s", 4, 1, std::array{0.0f, 2.0f});
  c.add_token("s", 5, 1, std::array{3.0f, 2.75f});
  const LogitsDifference d = c.result(1);
  EXPECT_EQ(d.tokens_only, 2);
  EXPECT_EQ(d.rows, 0);
  EXPECT_EQ(d.agreed, 1);
  EXPECT_EQ(d.agreement(), 0.5);
  EXPECT_EQ(d.disagreements.front().margin, 0.25);
}

TEST(LogitsComparison, never_takes_a_value_that_is_not_finite_for_a_small_difference) {
  for (const float bad : {kNaN, kInfinity, -kInfinity}) {
    LogitsComparison c;
    c.add("s", 0, std::array{1.0f, 2.0f}, std::array{1.0f, 2.0f});
    c.add("s", 1, std::array{1.0f, 2.0f}, std::array{bad, 2.0f});
    c.add("s", 2, std::array{1.0f, 2.0f}, std::array{1.5f, 2.0f});
    const LogitsDifference d = c.result(10);
    EXPECT_EQ(d.not_finite, 1);
    EXPECT_EQ(d.worst->position, 1);
    EXPECT_EQ(d.first_divergence->position, 1);
    EXPECT_EQ(d.max_abs, 0.5);
    EXPECT_TRUE(std::isfinite(d.mean_kl));
  }
}

LayerStateValues state(std::int64_t layer, std::string kind, std::vector<float> values) {
  const auto size = static_cast<std::int64_t>(values.size());
  return {layer, std::move(kind), {1, size}, std::move(values)};
}

TEST(CompareStates, pairs_by_layer_and_kind_and_measures_against_the_largest_value) {
  const std::vector baseline{state(0, "conv", {1, -4}), state(0, "recurrent", {2}), state(1, "conv", {3})};
  const std::vector candidate{state(1, "conv", {3}), state(0, "recurrent", {2.5}), state(0, "conv", {1, -3})};
  const auto d = compare_states("s", baseline, candidate);
  ASSERT_EQ(d.size(), 3u);
  EXPECT_EQ(d[0].max_abs, 1.0);
  EXPECT_EQ(d[0].scale, 4.0);
  EXPECT_EQ(d[1].max_abs, 0.5);
  EXPECT_EQ(d[2].max_abs, 0.0);
  EXPECT_FALSE(d[0].within());
  EXPECT_TRUE(d[2].within());
}

TEST(CompareStates, a_state_that_is_absent_misshapen_or_not_finite_is_never_within) {
  const std::vector baseline{state(0, "key", {1, 2}), state(1, "key", {1, 2}), state(2, "key", {1, 2})};
  const std::vector candidate{state(0, "key", {1, kNaN}), state(1, "key", {1, 2, 3})};
  auto d = compare_states("s", baseline, candidate);
  for (StateDifference& s : d) {
    s.tolerance = 1e30;
    EXPECT_FALSE(s.within()) << s.layer;
  }
  EXPECT_EQ(d[1].note, "shape [1, 3] instead of [1, 2]");
  EXPECT_EQ(d[2].note, "absent");
}

}  // namespace
}  // namespace sluice

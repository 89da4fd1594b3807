#include "architecture/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "architecture/config_testing.h"
#include "base/error.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using testing::ConfigText;
using testing::dense_config;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ConfigText bare() { return dense_config().without("rope_parameters"); }

ConfigText with_rope(const std::string& keys) { return bare().with("rope_parameters", "{" + keys + "}"); }

std::string error_of(const ConfigText& config) {
  try {
    config.read();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << config.text();
  return {};
}

TEST(Rope, DerivesPlainFrequencies) {
  const RopeConfig rope =
      with_rope(R"("rope_theta":1000000,"partial_rotary_factor":0.25)").read().rope;  // head_dim 32: d = 8
  EXPECT_EQ(rope.rotary_dim(), 8);
  EXPECT_EQ(rope.attention_factor, 1.0);
  ASSERT_EQ(rope.inverse_frequency.size(), 4u);
  for (int i = 0; i < 4; ++i)
    EXPECT_DOUBLE_EQ(rope.inverse_frequency[static_cast<std::size_t>(i)], std::pow(1e6, -2.0 * i / 8));
}

TEST(Rope, TakesOddRotarySizesAsTransformersDoes) {
  const RopeConfig rope =
      dense_config().with("head_dim", "12").with("rope_parameters", R"({"rope_theta":10000})").read().rope;  // d = 3
  EXPECT_EQ(rope.rotary_dim(), 4);
  EXPECT_THAT(rope.inverse_frequency, ElementsAre(1.0, ::testing::DoubleEq(std::pow(1e4, -2.0 / 3))));
  // 20 * 0.35 is 7 in decimal and 7 or less in double: Python's int() decides.
  const RopeConfig truncated = dense_config()
                                   .with("head_dim", "20")
                                   .with("rope_parameters", R"({"rope_theta":10000,"partial_rotary_factor":0.35})")
                                   .read()
                                   .rope;
  EXPECT_EQ(truncated.inverse_frequency.size(), static_cast<std::size_t>((static_cast<int>(20 * 0.35) + 1) / 2));
}

TEST(Rope, FindsKeysInEverySpelling) {
  for (const ConfigText& config :
       {bare().with("rope_parameters", R"({"rope_theta":5000,"partial_rotary_factor":0.5,"rope_type":"default"})"),
        bare().with("rope_scaling", R"({"rope_theta":5000,"partial_rotary_factor":0.5,"type":"default"})"),
        bare().with("rope_theta", "5000").with("partial_rotary_factor", "0.5").with("rope_scaling", "null"),
        bare()
            .with("rope_theta", "5000.0")
            .with("partial_rotary_factor", "0.5")
            .with("rope_parameters", R"({"rope_type":"default"})"),
        bare()
            .with("rope_theta", "5000")
            .with("rope_parameters", R"({"rope_theta":5000.0,"partial_rotary_factor":0.5})")
            .with("rope_scaling", "{}"),
        bare()
            .with("rope_theta", "5000")
            .with("partial_rotary_factor", "0.5")
            .with("rope_type", "\"default\"")
            .with("rope_parameters", "null"),
        bare()
            .with("rope_theta", "5000")
            .with("partial_rotary_factor", "0.5")
            .with("rope_scaling", R"({"type":"mrope","rope_type":"default"})")}) {
    const HybridConfig c = config.read();
    EXPECT_EQ(c.rope.theta, 5000) << config.text();
    EXPECT_EQ(c.rope.partial_rotary_factor, 0.5) << config.text();
    EXPECT_EQ(c.rope.type, RopeType::default_);
    EXPECT_THAT(c.notices, IsEmpty()) << config.text();
  }
}

TEST(Rope, WarnsLoudlyWhenThetaIsNowhere) {
  for (const ConfigText& config : {bare(), bare().with("rope_parameters", "null"),
                                   with_rope(R"("rope_type":"default")"), bare().with("rope_scaling", "null")}) {
    const HybridConfig c = config.read();
    EXPECT_EQ(c.rope.theta, 10000);
    EXPECT_EQ(c.rope.partial_rotary_factor, 0.25);
    EXPECT_THAT(c.notices, ElementsAre(AllOf(HasSubstr("WARNING"), HasSubstr("rope_theta"), HasSubstr("10000"))));
  }
}

TEST(Rope, RefusesPlacesThatContradictEachOther) {
  EXPECT_THAT(error_of(with_rope(R"("rope_theta":5000)").with("rope_theta", "6000")),
              AllOf(HasSubstr("rope_theta is 5000"), HasSubstr("rope_theta is 6000")));
  EXPECT_THAT(error_of(with_rope(R"("rope_theta":5000)").with("rope_scaling", R"({"rope_theta":6000})")),
              HasSubstr("rope_scaling: rope_theta is 6000"));
  EXPECT_THAT(
      error_of(with_rope(R"("rope_theta":5000,"partial_rotary_factor":0.5)").with("partial_rotary_factor", "0.25")),
      HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(error_of(with_rope(R"("rope_theta":5000,"rope_type":"linear","factor":2)")
                           .with("rope_scaling", R"({"rope_type":"yarn","factor":2})")),
              AllOf(HasSubstr("linear"), HasSubstr("yarn")));
  EXPECT_THAT(error_of(with_rope(R"("rope_theta":5000,"rope_type":"linear","type":"yarn","factor":2)")),
              HasSubstr("type"));
}

TEST(Rope, RefusesUnknownTypesByName) {
  for (const std::string type : {"magic", "dynamic", "longrope", "llama3", "proportional", "", "axial"}) {
    EXPECT_THAT(error_of(with_rope(fmt::format(R"("rope_theta":5000,"factor":2,"rope_type":"{}")", type))),
                AllOf(HasSubstr("rope_type \"" + type + "\""), HasSubstr("default, linear, yarn")));
    EXPECT_THAT(
        error_of(
            bare().with("rope_theta", "5000").with("rope_scaling", fmt::format(R"({{"factor":2,"type":"{}"}})", type))),
        HasSubstr("\"" + type + "\""));
  }
  EXPECT_THAT(error_of(with_rope(R"("rope_theta":5000,"rope_type":3)")), HasSubstr("rope_type"));
}

TEST(Rope, ScalesLinearly) {
  const RopeConfig rope = with_rope(R"("rope_theta":10000,"rope_type":"linear","factor":4)").read().rope;
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_DOUBLE_EQ(rope.inverse_frequency[i], std::pow(1e4, -2.0 * static_cast<double>(i) / 8) / 4);
  EXPECT_EQ(rope.attention_factor, 1.0);
  EXPECT_THAT(error_of(with_rope(R"("rope_theta":10000,"rope_type":"linear")")),
              AllOf(HasSubstr("linear"), HasSubstr("factor")));
}

// head_dim 64, partial 0.5: d = 32, theta 1e4, original 32: every number below worked out with Python's math module.
TEST(Rope, InterpolatesWithYarn) {
  const ConfigText config =
      bare()
          .with("head_dim", "64")
          .with("max_position_embeddings", "128")
          .with(
              "rope_scaling",
              R"({"rope_type":"yarn","factor":4,"rope_theta":10000,"partial_rotary_factor":0.5,"original_max_position_embeddings":32})");
  const RopeConfig rope = config.read().rope;
  // correction(32) = -3.19 -> 0, correction(1) = 2.83 -> 3: ramp 0, 1/3, 2/3, 1, 1, ...
  ASSERT_EQ(rope.inverse_frequency.size(), 16u);
  for (std::size_t i = 0; i < 16; ++i) {
    const double plain = std::pow(1e4, -2.0 * static_cast<double>(i) / 32),
                 ramp = std::min(static_cast<double>(i) / 3, 1.0);
    EXPECT_NEAR(rope.inverse_frequency[i], plain / 4 * ramp + plain * (1 - ramp), 1e-15 * plain + 1e-18) << i;
  }
  EXPECT_DOUBLE_EQ(rope.attention_factor, 0.1 * std::log(4.0) + 1);
}

TEST(Rope, HonoursEveryKeyOfYarn) {
  const std::string base =
      R"("rope_type":"yarn","rope_theta":10000,"partial_rotary_factor":0.5,"original_max_position_embeddings":32)";
  const auto rope = [&](const std::string& more) {
    return bare()
        .with("head_dim", "64")
        .with("max_position_embeddings", "128")
        .with("rope_scaling", "{" + base + more + "}")
        .read()
        .rope;
  };
  const RopeConfig plain = rope(R"(,"factor":4)");
  EXPECT_EQ(rope("").inverse_frequency, plain.inverse_frequency)
      << "factor null: max_position_embeddings / original = 4";
  EXPECT_EQ(rope(R"(,"factor":null)").attention_factor, plain.attention_factor);
  EXPECT_EQ(rope(R"(,"factor":4,"attention_factor":0.7)").attention_factor, 0.7);
  EXPECT_DOUBLE_EQ(rope(R"(,"factor":4,"mscale":0.5,"mscale_all_dim":2)").attention_factor,
                   (0.05 * std::log(4.0) + 1) / (0.2 * std::log(4.0) + 1));
  EXPECT_DOUBLE_EQ(rope(R"(,"factor":4,"mscale":0.5,"mscale_all_dim":0)").attention_factor, plain.attention_factor);
  EXPECT_EQ(rope(R"(,"factor":1)").attention_factor, 1.0);
  EXPECT_EQ(rope(R"(,"factor":4,"beta_fast":32,"beta_slow":1)").inverse_frequency, plain.inverse_frequency);
  EXPECT_NE(rope(R"(,"factor":4,"beta_fast":2)").inverse_frequency, plain.inverse_frequency);
  EXPECT_NE(rope(R"(,"factor":4,"beta_slow":0.1)").inverse_frequency, plain.inverse_frequency);
  EXPECT_EQ(rope(R"(,"factor":4,"truncate":true)").inverse_frequency, plain.inverse_frequency);
  const RopeConfig untruncated = rope(R"(,"factor":4,"truncate":false)");
  const double high = 32 * std::log(32 / (2 * M_PI)) / (2 * std::log(1e4)), ramp = 1 / high,
               inverse = std::pow(1e4, -2.0 / 32);
  EXPECT_NEAR(untruncated.inverse_frequency[1], inverse / 4 * ramp + inverse * (1 - ramp), 1e-15);
}

TEST(Rope, NeverDividesByZeroInYarn) {
  // Both corrections clamp to 0: the ramp is a step, its width 0.001.
  const RopeConfig rope =
      bare()
          .with("rope_scaling",
                R"({"rope_type":"yarn","factor":2,"rope_theta":10000,"original_max_position_embeddings":1})")
          .read()
          .rope;
  for (const double inverse : rope.inverse_frequency) EXPECT_TRUE(std::isfinite(inverse) && inverse > 0);
  const std::string yarn = R"("rope_type":"yarn","factor":2,"original_max_position_embeddings":32)";
  EXPECT_THAT(error_of(with_rope(yarn + R"(,"rope_theta":1)")), HasSubstr("rope_theta"));
  EXPECT_THAT(error_of(with_rope(yarn + R"(,"rope_theta":10000)").with("head_dim", "12")), HasSubstr("even"));
}

TEST(Rope, SaysWhichOriginalContextYarnTakes) {
  const HybridConfig c = with_rope(R"("rope_type":"yarn","factor":2,"rope_theta":10000)").read();
  EXPECT_THAT(c.notices, ElementsAre(AllOf(HasSubstr("original_max_position_embeddings"), HasSubstr("512"))));
}

TEST(Rope, RefusesValuesWithoutSense) {
  for (const std::string keys :
       {R"("rope_theta":0)", R"("rope_theta":-1)", R"("rope_theta":"1e4")",
        R"("rope_theta":5000,"partial_rotary_factor":0)", R"("rope_theta":5000,"partial_rotary_factor":-0.5)",
        R"("rope_theta":5000,"partial_rotary_factor":1.5)", R"("rope_theta":5000,"partial_rotary_factor":1e300)",
        R"("rope_theta":5000,"partial_rotary_factor":0.001)", R"("rope_theta":5000,"rope_type":"linear","factor":0)",
        R"("rope_theta":5000,"rope_type":"linear","factor":-2)",
        R"("rope_theta":5000,"rope_type":"linear","factor":1e-320)",
        R"("rope_theta":5000,"rope_type":"yarn","factor":2,"original_max_position_embeddings":0)",
        R"("rope_theta":5000,"rope_type":"yarn","factor":2,"attention_factor":-1)",
        R"("rope_theta":5000,"rope_type":"yarn","factor":2,"beta_fast":-1)",
        R"("rope_theta":5000,"mrope_interleaved":1)"}) {
    EXPECT_THAT(error_of(with_rope(keys)), HasSubstr("config.json")) << keys;
  }
  EXPECT_THAT(error_of(bare().with("rope_parameters", "[]")), HasSubstr("rope_parameters"));
  EXPECT_THAT(error_of(dense_config()
                           .with("head_dim", "5")
                           .with("rope_parameters", R"({"rope_theta":5000,"partial_rotary_factor":1})")),
              HasSubstr("head_dim 5"));
}

TEST(Rope, ReadsMropeSectionsAndHoldsThemAgainstTheRotaryDimension) {
  const RopeConfig rope =
      with_rope(R"("rope_theta":5000,"mrope_section":[2,1,1],"mrope_interleaved":true)").read().rope;
  EXPECT_THAT(rope.mrope_section, ElementsAre(2, 1, 1));
  EXPECT_TRUE(rope.mrope_interleaved);
  EXPECT_THAT(bare().with("rope_theta", "5000").with("mrope_section", "[2,1,1]").read().rope.mrope_section,
              ElementsAre(2, 1, 1));
  EXPECT_THAT(with_rope(R"("rope_theta":5000)").read().rope.mrope_section, ElementsAre(0, 0, 0));
  EXPECT_THAT(error_of(with_rope(R"("rope_theta":5000,"mrope_section":[11,11,10])")),
              AllOf(HasSubstr("mrope_section [11,11,10]"), HasSubstr("32"), HasSubstr("is 4")));
  for (const std::string bad :
       {"[4]", "[1,1,1,1]", "[]", "[5,-1,0]", "[2.0,1,1]", "\"x\"", "[9223372036854775807,9223372036854775807,6]"}) {
    EXPECT_THAT(error_of(with_rope(R"("rope_theta":5000,"mrope_section":)" + bad)), HasSubstr("mrope_section")) << bad;
  }
}

TEST(Rope, WarnsOfRotaryKeysThatNothingReads) {
  EXPECT_THAT(with_rope(R"("rope_theta":5000,"factor":4)").read().notices,
              ElementsAre(HasSubstr("rope_parameters: factor (4)")));
  EXPECT_THAT(with_rope(R"("rope_theta":5000,"low_freq_factor":1)").read().notices,
              ElementsAre(HasSubstr("low_freq_factor")));
  EXPECT_THAT(error_of(with_rope(R"("rope_theta":5000,"full_attention":{"rope_theta":7})")),
              HasSubstr("full_attention"));
}

}  // namespace
}  // namespace sluice

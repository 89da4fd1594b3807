// What verify refuses, and how it says what it found.
#include <gmock/gmock.h>

#include "eval/package_source.h"
#include "tests/packages/packages.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr Combination kDense{"dense", Target::ort_cpu, Layout::dense, Recurrence::linear_attention, Gates::effective};
constexpr Combination kDelta{"delta", Target::ort_cpu, Layout::dense, Recurrence::gated_delta_net, Gates::raw};

class Verify : public ::testing::Test {
 protected:
  static std::filesystem::path golden_path(const char* name) { return golden::directory() / name; }
  VerifyOptions options_for(const char* name, const Combination& combination = kDense, ExportOptions how = {}) {
    VerifyOptions options;
    options.package = export_package(golden_path(name), combination, folder_, std::move(how));
    options.greedy_tokens = 2;
    return options;
  }
  testing::TempFolder folder_;
};

TEST_F(Verify, refuses_to_run_without_anything_to_hold_the_package_against) {
  VerifyOptions options;
  options.package = "nowhere";
  EXPECT_THAT(testing::error_of([&] { verify_package(options); }), HasSubstr("nothing to hold nowhere against"));
}

TEST_F(Verify, refuses_a_checkpoint_of_another_model_and_names_the_difference) {
  VerifyOptions options = options_for("dense35-base");
  options.checkpoint = golden_path("dense35-asym");
  EXPECT_THAT(testing::error_of([&] { verify_package(options); }),
              HasSubstr("the package's vocabulary is 320, the checkpoint's 300"));
}

TEST_F(Verify, refuses_logits_of_another_vocabulary) {
  VerifyOptions options = options_for("dense35-base");
  options.expect = golden_path("dense35-asym") / "expected.safetensors";
  EXPECT_THAT(testing::error_of([&] { verify_package(options); }), HasSubstr("logits of 300 entries"));
}

TEST_F(Verify, refuses_ids_and_lengths_the_package_cannot_take) {
  ExportOptions shorter;
  shorter.max_length = 16;
  VerifyOptions options = options_for("dense35-base", kDense, shorter);
  options.checkpoint = golden_path("dense35-base");
  options.lengths = {17};
  EXPECT_THAT(testing::error_of([&] { verify_package(options); }),
              HasSubstr("17 tokens does not fit the package's context of 16"));
  options.lengths = {0};
  EXPECT_THAT(testing::error_of([&] { verify_package(options); }), HasSubstr("lengths are 1 or more"));
  options.lengths.clear();
  options.ids = {{1, 320}};
  EXPECT_THAT(testing::error_of([&] { verify_package(options); }), HasSubstr("id 320 is outside"));
  options.ids = {{}};
  EXPECT_THAT(testing::error_of([&] { verify_package(options); }), HasSubstr("has no token"));
  // The default lengths stop at the context, and the greedy tokens with them.
  options.ids.clear();
  const VerifyReport report = verify_package(options);
  expect_within(report, 1);
  EXPECT_EQ(report.baselines[0].procedures[0].sequences, 2);  // 1 and 7 tokens
  options.lengths = {16};
  expect_within(verify_package(options), 1);
}

TEST_F(Verify, ends_when_it_is_interrupted) {
  struct Interrupted final : Progress {
    bool cancelled() const override { return true; }
  } progress;
  VerifyOptions options = options_for("dense35-base");
  options.checkpoint = golden_path("dense35-base");
  EXPECT_THAT(testing::error_of([&] { verify(options, progress); }), HasSubstr("interrupted"));
}

TEST_F(Verify, compares_the_ids_given_in_single_precision_too) {
  VerifyOptions options = options_for("next-mixed");
  options.checkpoint = golden_path("next-mixed");
  options.ids = {{5, 4, 3, 2, 1}};
  options.single_precision = true;
  const VerifyReport report = verify_package(options);
  expect_within(report, 1);
  EXPECT_EQ(report.baselines[0].procedures[0].logits.rows, 5);
  EXPECT_THAT(report.baselines[0].baseline, HasSubstr("in f32"));
  EXPECT_THAT(report.baselines[0].tolerance.formula, HasSubstr("the largest logit"));
}

TEST_F(Verify, says_what_the_operators_epsilon_does_on_a_line_of_its_own) {
  VerifyOptions options = options_for("dense35-smallscale", kDelta);
  options.expect = golden_path("dense35-smallscale") / "expected.safetensors";
  // Against logits alone the effect of 4e-2 cannot be told from an error, and the report says so.
  VerifyReport report = verify_package(options);
  EXPECT_FALSE(report.within());
  EXPECT_THAT(to_text(report), HasSubstr("epsilon 1e-12, checkpoints with 1e-06"));
  options.checkpoint = golden_path("dense35-smallscale");
  report = verify_package(options);
  expect_within(report, 2);
  for (const BaselineResult& b : report.baselines) {
    ASSERT_TRUE(b.epsilon_effect.has_value());
    EXPECT_GT(*b.epsilon_effect, 1e-3);
  }
  EXPECT_LT(report.baselines[1].procedures[0].logits.max_abs, 1e-3);  // the reference has the same epsilon
  EXPECT_THAT(to_text(report), HasSubstr("is what the operator's own q/k epsilon moves a logit by"));
}

TEST_F(Verify, reports_a_table_a_person_can_read) {
  VerifyOptions options = options_for("dense35-base");
  options.checkpoint = golden_path("dense35-base");
  const std::string text = to_text(verify_package(options));
  for (const char* part :
       {"package ", "dense, linear-attention, effective gates, f32, for ort-cpu", "reference of ", "whole prefill",
        "cut prefill", "token by token", "greedy", "max |d|", "mean KL", "203/203", "tolerance", "states by layer",
        "recurrent", "the f32 rounding noise of the reference", "within tolerance", "OK: "}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, Not(HasSubstr("OUTSIDE")));
}

TEST_F(Verify, reports_json_that_parses_and_holds_the_same) {
  VerifyOptions options = options_for("dense35-base");
  options.checkpoint = golden_path("dense35-base");
  const VerifyReport report = verify_package(options);
  const Json json = parse_json(to_json(report).dump(), "report");
  EXPECT_TRUE(json.at("within", "report").as_bool("within"));
  const Json& baseline = json.at("baselines", "report").as_array("baselines").at(0);
  const Json& whole = baseline.at("procedures", "baseline").as_array("procedures").at(0);
  EXPECT_EQ(whole.at("name", "procedure").as_string("name"), "whole prefill");
  const Json& logits = whole.at("logits", "procedure");
  EXPECT_EQ(logits.at("positions", "logits").as_int("positions"), 203);
  EXPECT_EQ(logits.at("max_abs", "logits").as_number("max_abs"), report.baselines[0].procedures[0].logits.max_abs);
  EXPECT_EQ(whole.at("states", "procedure").as_array("states").size(), 8u);
}

TEST_F(Verify, continues_text_with_river_mini_as_was_measured) {
  const std::filesystem::path checkpoint = std::filesystem::path(SLUICE_SOURCE_DIR) / "models/river-mini";
  const std::filesystem::path package = export_package(checkpoint, kDense, folder_);

  const Json file = read_json(checkpoint / "expected_greedy.json");
  const Session session(package, {});
  const auto source = make_package_source(session, "river-mini");
  for (const Json& prompt : file.at("prompts", "file").as_array("prompts")) {
    const auto ids = [&](const char* key) {
      std::vector<std::int64_t> out;
      for (const Json& id : prompt.at(key, "prompt").as_array(key)) out.push_back(id.as_int(key));
      return out;
    };
    EXPECT_EQ(source->greedy(ids("prompt_ids"), 64), ids("generated_ids"));
  }
}

}  // namespace
}  // namespace sluice

// The reference against the golden cases: transformers' outputs, in float64 and float32, of every family.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "reference/model.h"
#include "tests/support/golden.h"

namespace sluice::reference {
namespace {

using golden::Case;

// The goldens are float64 results stored as float32: half a unit in the last place of the largest logit (13), and the
// float64 noise of both sides (1e-12), stay below this.
constexpr double kDoubleTolerance = 2e-6;
// Another order of the same float32 sums is another draw of the same noise. The floor in meta.json is the largest of
// some ten thousand values of one draw; the largest of another draw, from other sums, may be several times that.
constexpr double kFloatMargin = 4.0;

template <typename T>
struct Loaded {
  explicit Loaded(const std::filesystem::path& path, Options options = {}, Executor* threads = nullptr)
      : source(open_model(path)),
        model(source.config, source.weights, threads != nullptr ? *threads : serial, options) {}
  SerialExecutor serial;
  ModelSource source;
  Model<T> model;
};

template <typename T>
Rows<T> pick(const Rows<T>& from, const std::vector<std::int64_t>& positions) {
  Rows<T> out(static_cast<std::int64_t>(positions.size()), from.cols());
  for (std::size_t i = 0; i < positions.size(); ++i) {
    std::ranges::copy(from[positions[i]], out[static_cast<std::int64_t>(i)].begin());
  }
  return out;
}

// Every value within `tolerance`; the failure names the worst.
template <typename T>
testing::AssertionResult near(const Rows<T>& actual, const golden::Table& expected, double tolerance) {
  if (actual.rows() != expected.rows || actual.cols() != expected.cols) {
    return testing::AssertionFailure() << "[" << actual.rows() << ", " << actual.cols() << "] instead of ["
                                       << expected.rows << ", " << expected.cols << "]";
  }
  double worst = -1;
  std::size_t at = 0;
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    const double difference = std::abs(static_cast<double>(actual.values()[i]) - expected.values[i]);
    if (!(difference <= worst)) worst = difference, at = i;
  }
  if (worst <= tolerance) return testing::AssertionSuccess();
  const auto cols = static_cast<std::size_t>(expected.cols);
  return testing::AssertionFailure() << fmt::format("[{}, {}] is {} instead of {}: off by {:.3g}, tolerance {:.3g}",
                                                    at / cols, at % cols, actual.values()[at], expected.values[at],
                                                    worst, tolerance);
}

template <typename T>
std::int64_t argmax(std::span<const T> row) {
  return std::ranges::max_element(row) - row.begin();
}

// Greedy tokens after a prompt, through the state, and the logits that chose each.
template <typename T>
std::pair<std::vector<std::int64_t>, Rows<T>> greedy(const Model<T>& model, std::span<const std::int64_t> prompt,
                                                     std::size_t count) {
  State<T> state = model.start();
  std::vector<std::int64_t> tokens;
  Rows<T> logits;
  Rows<T> hidden = model.forward(prompt, state);
  while (tokens.size() < count) {
    logits.append(model.head(pick(hidden, {hidden.rows() - 1})));
    tokens.push_back(argmax<T>(logits[logits.rows() - 1]));
    hidden = model.forward(std::span(tokens).last(1), state);
  }
  return {tokens, logits};
}

class GoldenReference : public testing::TestWithParam<std::string> {
 protected:
  template <typename T>
  void expect_logits(double tolerance) {
    const Case golden(GetParam());
    const Loaded<T> loaded(golden.path);
    for (std::size_t s = 0; s < golden.sequences(); ++s) {
      SCOPED_TRACE(fmt::format("sequence {}", s));
      const std::string name = fmt::format("seq{}.", s);
      State<T> state = loaded.model.start();
      const Rows<T> hidden = loaded.model.forward(golden.integers(name + "input_ids"), state);
      const Rows<T> logits = loaded.model.head(pick(hidden, golden.integers(name + "logits_pos")));
      EXPECT_TRUE(near(logits, golden.table(name + "logits_f64"), tolerance));
    }
  }
  template <typename T>
  void expect_greedy() {
    const Case golden(GetParam());
    const Loaded<T> loaded(golden.path);
    for (std::size_t s = 0; s < golden.sequences(); ++s) {
      SCOPED_TRACE(fmt::format("sequence {}", s));
      const std::string name = fmt::format("seq{}.", s);
      const auto expected = golden.integers(name + "greedy_ids");
      const auto [tokens, logits] = greedy(loaded.model, golden.integers(name + "input_ids"), expected.size());
      EXPECT_EQ(tokens, expected);
      // The expected rows are float32 results whatever T is.
      const double noise = std::max(golden.noise("fp32_vs_fp64"), golden.noise("greedy_cached_vs_uncached"));
      EXPECT_TRUE(near(logits, golden.table(name + "greedy_logits"), kFloatMargin * noise));
    }
  }
};

TEST_P(GoldenReference, double_logits_equal_float64_logits) { expect_logits<double>(kDoubleTolerance); }

TEST_P(GoldenReference, float_logits_stay_near_the_noise_floor) {
  expect_logits<float>(kFloatMargin * Case(GetParam()).noise("fp32_vs_fp64"));
}

TEST_P(GoldenReference, greedy_tokens_are_equal_in_double) { expect_greedy<double>(); }
TEST_P(GoldenReference, greedy_tokens_are_equal_in_float) { expect_greedy<float>(); }

TEST_P(GoldenReference, prefill_in_two_parts_gives_the_expected_logits) {
  const Case golden(GetParam());
  const Loaded<double> loaded(golden.path);
  const auto ids = golden.integers(fmt::format("seq{}.input_ids", golden.sequence_named_by("split_sequence")));
  const auto cut = static_cast<std::size_t>(golden.meta.at("split_at", "meta").as_int("split_at"));
  State<double> state = loaded.model.start();
  Rows<double> hidden = loaded.model.forward(std::span(ids).first(cut), state);
  hidden.append(loaded.model.forward(std::span(ids).subspan(cut), state));
  const double noise = golden.noise("fp32_vs_fp64") + golden.noise("split_prefill_vs_full");
  EXPECT_TRUE(near(loaded.model.head(pick(hidden, golden.integers("split.logits_pos"))), golden.table("split.logits"),
                   kFloatMargin * noise));
}

// [channels, K] expected, of which the first column is not needed by the next token: [K - 1, channels] kept.
golden::Table conv_state(const golden::Table& expected) {
  golden::Table out{expected.cols - 1, expected.rows, {}};
  for (std::int64_t j = 1; j < expected.cols; ++j) {
    for (std::int64_t c = 0; c < expected.rows; ++c) out.values.push_back(expected.row(c)[j]);
  }
  return out;
}

// [kv_heads, tokens, head_dim] as [tokens, kv_heads * head_dim].
golden::Table kv_state(const golden::Table& expected, std::int64_t heads) {
  const std::int64_t tokens = expected.rows / heads;
  golden::Table out{tokens, heads * expected.cols, {}};
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const double* row = expected.row(h * tokens + t);
      out.values.insert(out.values.end(), row, row + expected.cols);
    }
  }
  return out;
}

TEST_P(GoldenReference, states_after_a_prefill_are_equal) {
  const Case golden(GetParam());
  const Loaded<double> loaded(golden.path);
  const HybridConfig& config = loaded.source.config;
  State<double> state = loaded.model.start();
  const auto ids = golden.integers(fmt::format("seq{}.input_ids", golden.sequence_named_by("state_sequence")));
  loaded.model.forward(ids, state);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    SCOPED_TRACE(fmt::format("layer {}", layer));
    const LayerState<double>& s = state.layers[static_cast<std::size_t>(layer)];
    const auto expected = [&](const char* kind) { return golden.table(fmt::format("state.layer{}.{}", layer, kind)); };
    const auto tolerance = [&](const char* kind) { return kFloatMargin * golden.state_noise(kind); };
    if (config.is_linear(layer)) {
      EXPECT_TRUE(near(s.conv, conv_state(expected("conv")), tolerance("conv")));
      Rows<double> recurrent(config.linear_v_heads * config.linear_k_dim, config.linear_v_dim);
      std::ranges::copy(s.recurrent, recurrent.values().begin());
      EXPECT_TRUE(near(recurrent, expected("recurrent"), tolerance("recurrent")));
    } else {
      EXPECT_TRUE(near(s.keys, kv_state(expected("key"), config.kv_heads), tolerance("key")));
      EXPECT_TRUE(near(s.values, kv_state(expected("value"), config.kv_heads), tolerance("value")));
    }
  }
}

TEST_P(GoldenReference, every_probe_is_equal) {
  const Case golden(GetParam());
  const Loaded<double> loaded(golden.path);
  const auto positions = golden.meta.at("probe_positions", "meta").as_int("probe_positions");
  auto ids = golden.integers(fmt::format("seq{}.input_ids", golden.sequence_named_by("probe_sequence")));
  ids.resize(static_cast<std::size_t>(positions));  // a token's results do not depend on later tokens
  std::vector<std::string> seen;
  State<double> state = loaded.model.start();
  loaded.model.forward(ids, state, [&](std::string_view name, const Rows<double>& rows) {
    seen.push_back(fmt::format("probe.{}", name));
    SCOPED_TRACE(seen.back());
    EXPECT_TRUE(near(rows, golden.table(seen.back()), kFloatMargin * golden.state_noise("probe")));
  });
  std::vector<std::string> expected;
  for (const SafetensorsEntry& entry : golden.expected.entries()) {
    if (entry.name.starts_with("probe.")) expected.push_back(entry.name);
  }
  EXPECT_THAT(seen, testing::UnorderedElementsAreArray(expected));
}

INSTANTIATE_TEST_SUITE_P(, GoldenReference, testing::ValuesIn(golden::cases()),
                         [](const auto& test) { return golden::test_name(test.param); });

// Bits, not tolerances: a token's sums have one order, whatever else is computed in the call.
TEST(Reference, results_do_not_depend_on_cuts_or_threads) {
  for (const char* name : {"dense35-asym", "moe35-base", "next-mixed"}) {
    SCOPED_TRACE(name);
    const Case golden(name);
    const Loaded<float> serial(golden.path);
    ThreadPool pool(3);
    const Loaded<float> threaded(golden.path, {}, &pool);
    const auto ids = golden.integers("seq2.input_ids");
    State<float> whole_state = serial.model.start();
    const Rows<float> whole = serial.model.forward(ids, whole_state);
    State<float> state = threaded.model.start();
    Rows<float> parts(0, whole.cols());
    std::span<const std::int64_t> left = ids;
    for (std::size_t cut = 1; !left.empty(); cut = cut * 2 + 1) {
      const std::size_t count = std::min(cut, left.size());
      parts.append(threaded.model.forward(left.first(count), state));
      left = left.subspan(count);
    }
    EXPECT_TRUE(std::ranges::equal(whole.values(), parts.values()));
    for (std::size_t layer = 0; layer < state.layers.size(); ++layer) {
      EXPECT_EQ(state.layers[layer].recurrent, whole_state.layers[layer].recurrent);
      EXPECT_TRUE(std::ranges::equal(state.layers[layer].conv.values(), whole_state.layers[layer].conv.values()));
      EXPECT_TRUE(std::ranges::equal(state.layers[layer].keys.values(), whole_state.layers[layer].keys.values()));
    }
  }
}

TEST(Reference, runs_a_prompt_longer_than_its_pieces) {
  const Case golden("dense35-long");
  const Loaded<float> loaded(golden.path);
  const auto ids = golden.integers("seq4.input_ids");
  ASSERT_GT(ids.size(), 256u);
  State<float> at_once = loaded.model.start();
  State<float> by_token = loaded.model.start();
  const Rows<float> hidden = loaded.model.forward(ids, at_once);
  Rows<float> last;
  for (const std::int64_t id : ids) last = loaded.model.forward(std::array{id}, by_token);
  EXPECT_EQ(hidden.rows(), static_cast<std::int64_t>(ids.size()));
  EXPECT_TRUE(std::ranges::equal(hidden[hidden.rows() - 1], last[0]));
}

TEST(Reference, an_intact_checkpoint_beside_the_malformed_ones_gives_its_logits) {
  const std::filesystem::path path = golden::directory() / "malformed/ok";
  const SafetensorsFile expected(path / "expected.safetensors");
  const Loaded<double> loaded(path);
  std::vector<std::int64_t> ids(8);
  std::memcpy(ids.data(), expected.at("seq0.input_ids").view.bytes.data(), ids.size() * sizeof(std::int64_t));
  std::vector<float> logits(8 * 32);
  std::memcpy(logits.data(), expected.at("seq0.logits").view.bytes.data(), logits.size() * sizeof(float));
  State<double> state = loaded.model.start();
  const Rows<double> actual = loaded.model.head(loaded.model.forward(ids, state));
  // A float32 run of two layers: 1e-5 is what the smallest of the cases shows as noise.
  EXPECT_TRUE(near(actual, golden::Table{8, 32, {logits.begin(), logits.end()}}, 1e-4));
}

TEST(Reference, the_operators_epsilon_matters_only_where_activations_are_small) {
  const auto effect = [](const char* name) {
    const Case golden(name);
    const Loaded<double> checkpoint(golden.path);
    const Loaded<double> contract(golden.path, {.qk_norm_epsilon = 1e-12});
    const auto ids = golden.integers("seq2.input_ids");
    State<double> a = checkpoint.model.start();
    State<double> b = contract.model.start();
    const Rows<double> x = checkpoint.model.head(checkpoint.model.forward(ids, a));
    const Rows<double> y = contract.model.head(contract.model.forward(ids, b));
    double worst = 0;
    for (std::size_t i = 0; i < x.values().size(); ++i)
      worst = std::max(worst, std::abs(x.values()[i] - y.values()[i]));
    return worst;
  };
  EXPECT_GT(effect("dense35-smallscale"), 1e-2);
  EXPECT_LT(effect("dense35-base"), 1e-4);
  EXPECT_GT(effect("dense35-base"), 0.0);
}

TEST(Reference, cut_to_leading_layers_stops_behind_them) {
  const Case golden("dense35-base");
  const Loaded<double> loaded(golden.path, {.num_layers = 2});
  State<double> state = loaded.model.start();
  EXPECT_EQ(state.layers.size(), 2u);
  Rows<double> last;
  loaded.model.forward(golden.integers("seq1.input_ids"), state, [&](std::string_view name, const Rows<double>& rows) {
    EXPECT_EQ(name.find("layer2"), std::string_view::npos);
    if (name == "hidden.layer1") last = rows;
  });
  EXPECT_TRUE(near(last, golden.table("probe.hidden.layer1"), kFloatMargin * golden.state_noise("probe")));
}

TEST(Reference, refuses_ids_outside_the_vocabulary_and_keeps_its_state) {
  const Loaded<float> loaded(Case("dense35-base").path);
  State<float> state = loaded.model.start();
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{320}, INT64_MAX}) {
    try {
      loaded.model.forward(std::array<std::int64_t, 2>{1, bad}, state);
      ADD_FAILURE() << "accepted " << bad;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(fmt::format("token {}", bad)));
      EXPECT_THAT(error.what(), testing::HasSubstr("320"));
    }
  }
  EXPECT_EQ(state.tokens, 0);
}

TEST(Reference, refuses_more_layers_than_the_checkpoint_has) {
  EXPECT_THROW(Loaded<float>(Case("dense35-base").path, {.num_layers = 5}), Error);
}

// A trained model: the tokens that transformers chose, whose margins (0.014 and up) are far above float32 noise.
TEST(Reference, continues_text_as_river_mini_was_measured_to) {
  const std::filesystem::path path = std::filesystem::path(SLUICE_SOURCE_DIR) / "models/river-mini";
  ThreadPool pool(2);
  const Loaded<float> loaded(path, {}, &pool);
  const Json file = read_json(path / "expected_greedy.json");
  for (const Json& prompt : file.at("prompts", "file").as_array("prompts")) {
    const auto ids = [&](const char* key) {
      std::vector<std::int64_t> out;
      for (const Json& id : prompt.at(key, "prompt").as_array(key)) out.push_back(id.as_int(key));
      return out;
    };
    const auto expected = ids("generated_ids");
    EXPECT_EQ(greedy(loaded.model, ids("prompt_ids"), expected.size()).first, expected)
        << prompt.at("prompt", "prompt").dump();
  }
}

}  // namespace
}  // namespace sluice::reference

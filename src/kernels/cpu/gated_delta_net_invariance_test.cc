// What GatedDeltaNet's bits may not depend on: the rest of the batch, the threads, where a row is cut; and its capsule.
#include "kernels/cpu/gated_delta_net_fixture.h"

namespace sluice {
namespace {

using gdn_test::Options;
using gdn_test::Problem;
using gdn_test::Result;
using gdn_test::same_bits;

std::vector<float> piece(const std::vector<float>& values, std::int64_t from, std::int64_t count) {
  return {values.begin() + from, values.begin() + from + count};
}

void expect_rows_equal_solo_runs(const Problem& batch, const Result& together, Level level, const std::string& what) {
  SerialExecutor serial;
  for (std::int64_t row = 0; row < batch.shape.rows; ++row) {
    const std::int64_t begin = batch.offsets[static_cast<std::size_t>(row)];
    const std::int64_t length = batch.offsets[static_cast<std::size_t>(row) + 1] - begin;
    const Result solo = batch.part(row, 0, length).run(level, serial);
    EXPECT_TRUE(
        same_bits(solo.output, piece(together.output, begin * batch.output_floats(), length * batch.output_floats())))
        << what << " output of row " << row;
    EXPECT_TRUE(same_bits(solo.state, piece(together.state, row * batch.state_floats(), batch.state_floats())))
        << what << " state of row " << row;
    const std::int64_t width = batch.shape.capsule_width();
    EXPECT_TRUE(same_bits(solo.capsule, piece(together.capsule, row * width, width)))
        << what << " capsule of row " << row;
  }
}

Options random_options(std::mt19937& random) {
  const auto pick = [&](auto... values) {
    using T = std::common_type_t<decltype(values)...>;
    const T all[] = {values...};
    return all[random() % sizeof...(values)];
  };
  Options o;
  o.seed = static_cast<unsigned>(random());
  o.lengths.clear();
  const std::int64_t rows = 1 + static_cast<std::int64_t>(random() % 24);
  for (std::int64_t row = 0; row < rows; ++row) {
    o.lengths.push_back(pick(0, 1, 1, 1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 100, 130));
  }
  o.q_heads = o.k_heads = pick(1, 2, 3);
  o.v_heads = o.k_heads * pick(1, 2, 3);
  o.k_dim = pick(16, 24, 33), o.v_dim = pick(8, 32, 50);
  o.rule =
      pick(UpdateRule::gated_delta, UpdateRule::gated_delta, UpdateRule::delta, UpdateRule::gated, UpdateRule::linear);
  o.per_key = pick(false, false, true);
  o.dtype = pick(DType::f32, DType::f16, DType::bf16);
  o.qk_l2_norm = pick(true, true, false);
  o.key_length = pick(1.0f, 1.2f);
  if (pick(false, true)) {
    o.capacity = 1 + static_cast<std::int64_t>(random() % 8);
    for (std::int64_t row = 0; row < rows; ++row) o.capture_counts.push_back(pick(0, 0, 1, 3, 9));
  }
  return o;
}

TEST(GatedDeltaNetInvariance, ARowsBitsDoNotDependOnItsCompany) {
  std::mt19937 random(3);
  SerialExecutor serial;
  for (int round = 0; round < 40; ++round) {
    const Options o = random_options(random);
    const Problem problem(o);
    for (const Level level : supported_levels()) {
      if (level == Level::scalar && round >= 5) continue;
      expect_rows_equal_solo_runs(problem, problem.run(level, serial), level,
                                  fmt::format("{} round {}", level_name(level), round));
    }
  }
}

TEST(GatedDeltaNetInvariance, LargeRaggedBatchesEqualSoloRuns) {
  Options o;
  o.q_heads = o.k_heads = 4, o.v_heads = 12, o.k_dim = o.v_dim = 64;
  o.lengths = {17, 512, 1, 993, 64, 0, 1, 1};
  const Problem problem(o);
  ThreadPool pool(2);
  for (const Level level : supported_levels()) {
    if (level == Level::scalar) continue;
    expect_rows_equal_solo_runs(problem, problem.run(level, pool), level, std::string(level_name(level)));
  }
}

TEST(GatedDeltaNetInvariance, ThreadsDoNotChangeBits) {
  std::mt19937 random(11);
  ThreadPool two(2), three(3);
  SerialExecutor serial;
  for (int round = 0; round < 20; ++round) {
    const Problem problem(random_options(random));
    for (const Level level : supported_levels()) {
      if (level == Level::scalar && round >= 3) continue;
      const Result one = problem.run(level, serial);
      for (ThreadPool* pool : {&two, &three}) {
        const Result many = problem.run(level, *pool);
        EXPECT_TRUE(same_bits(one.output, many.output)) << level_name(level) << " threads " << pool->threads();
        EXPECT_TRUE(same_bits(one.state, many.state)) << level_name(level) << " threads " << pool->threads();
        EXPECT_TRUE(same_bits(one.capsule, many.capsule)) << level_name(level) << " threads " << pool->threads();
      }
    }
  }
}

// The row in pieces that end at `cuts`, each continuing from the state of the one before.
Result run_cut(const Problem& problem, const std::vector<std::int64_t>& cuts, Level level) {
  SerialExecutor serial;
  Result all;
  std::int64_t begin = 0;
  std::vector<float> state = problem.state.values();
  for (const std::int64_t end : cuts) {
    Problem part = problem.part(0, begin, end);
    part.state = gdn_test::Buffer(state, DType::f32);
    const Result result = part.run(level, serial);
    all.output.insert(all.output.end(), result.output.begin(), result.output.end());
    state = result.state;
    begin = end;
  }
  all.state = state;
  return all;
}

TEST(GatedDeltaNetInvariance, CutsAtMultiplesOfTheChunkDoNotChangeBits) {
  for (const std::int64_t length : {65, 128, 200, 321}) {
    for (const bool norm : {true, false}) {
      Options o;
      o.lengths = {length}, o.k_dim = 48, o.v_dim = 40, o.qk_l2_norm = norm;
      o.key_length = 1.1f;
      Problem problem(o);
      if (!norm) {  // the second chunk has one key that is too long, the others have not
        for (std::size_t i = 0; i < problem.key.size(); ++i) {
          if (i / 96 != 70) problem.key.set(i, problem.key.get(i) * 0.9f);
        }
      }
      SerialExecutor serial;
      std::vector<std::int64_t> every;
      for (std::int64_t at = kGatedDeltaNetChunk; at < length; at += kGatedDeltaNetChunk) every.push_back(at);
      every.push_back(length);
      for (const Level level : supported_levels()) {
        const Result whole = problem.run(level, serial);
        for (const std::vector<std::int64_t>& cuts : {every, {every[0], length}}) {
          const Result cut = run_cut(problem, cuts, level);
          if (level == Level::scalar) continue;  // the specification keeps its state in f64 within a call
          EXPECT_TRUE(same_bits(whole.output, cut.output))
              << level_name(level) << " length " << length << " norm " << norm;
          EXPECT_TRUE(same_bits(whole.state, cut.state))
              << level_name(level) << " length " << length << " norm " << norm;
        }
      }
    }
  }
}

TEST(GatedDeltaNetInvariance, OtherCutsAndDecodeStayWithinRounding) {
  Options o;
  o.lengths = {150}, o.k_dim = 48, o.v_dim = 40;
  const Problem problem(o);
  SerialExecutor serial;
  std::vector<std::int64_t> singly;
  for (std::int64_t t = 1; t <= 150; ++t) singly.push_back(t);
  for (const Level level : supported_levels()) {
    const Result whole = problem.run(level, serial);
    for (const std::vector<std::int64_t>& cuts : {singly, {1, 150}, {40, 65, 150}, {63, 127, 149, 150}}) {
      const Result cut = run_cut(problem, cuts, level);
      const std::string what = fmt::format("{} {} pieces", level_name(level), cuts.size());
      gdn_test::expect_close(cut.output, whole.output, 2 * gdn_test::tolerance(o), o.dtype, what + " output");
      gdn_test::expect_close(cut.state, whole.state, 2 * gdn_test::tolerance(o), o.dtype, what + " state");
    }
  }
}

// Decode after a prefill of whole chunks, and the row at once, are the same bits: the tail is a piece of its own.
TEST(GatedDeltaNetInvariance, ShortTailsEqualDecodeSteps) {
  Options o;
  o.lengths = {kGatedDeltaNetChunk + 5};
  const Problem problem(o);
  SerialExecutor serial;
  std::vector<std::int64_t> steps;
  for (std::int64_t t = 0; t <= 5; ++t) steps.push_back(kGatedDeltaNetChunk + t);
  for (const Level level : supported_levels()) {
    if (level == Level::scalar) continue;
    const Result whole = problem.run(level, serial);
    const Result cut = run_cut(problem, steps, level);
    EXPECT_TRUE(same_bits(whole.output, cut.output)) << level_name(level);
    EXPECT_TRUE(same_bits(whole.state, cut.state)) << level_name(level);
  }
}

// The state after the capsule's first `tokens` slots, from the row's initial state, as a host would replay it.
std::vector<float> replay(const Problem& problem, const Result& result, std::int64_t row, std::int64_t tokens) {
  const GatedDeltaNetShape& s = problem.shape;
  const float* capsule = result.capsule.data() + row * s.capsule_width();
  const float* keys = capsule + s.capacity * s.decay_width();
  const float* deltas = keys + s.capacity * s.k_heads * s.k_dim;
  std::vector<float> state = problem.state.slice(row * problem.state_floats(), problem.state_floats()).values();
  for (std::int64_t slot = 0; slot < tokens; ++slot) {
    for (std::int64_t at = 0; at < problem.state_floats(); ++at) {
      const std::int64_t i = at % s.k_dim, v = at / s.k_dim % s.v_dim, h = at / s.k_dim / s.v_dim;
      const float decay = capsule[slot * s.decay_width() + (s.per_key ? h * s.k_dim + i : h)];
      const float key = keys[(slot * s.k_heads + h / (s.v_heads / s.k_heads)) * s.k_dim + i];
      const float delta = deltas[(slot * s.v_heads + h) * s.v_dim + v];
      float& x = state[static_cast<std::size_t>(at)];
      x = std::fma(delta, key, x * decay);
    }
  }
  return state;
}

TEST(GatedDeltaNetCapture, ReplayingAPrefixGivesTheStateAfterIt) {
  for (const bool per_key : {false, true}) {
    for (const UpdateRule rule : {UpdateRule::gated_delta, UpdateRule::delta, UpdateRule::gated, UpdateRule::linear}) {
      Options o;
      o.per_key = per_key, o.rule = rule, o.k_dim = 20, o.v_dim = 11, o.capacity = 7;
      o.lengths = {7, 3, 40};
      o.capture_counts = {7, 9, 5};
      const Problem problem(o);
      SerialExecutor serial;
      for (const Level level : supported_levels()) {
        const Result result = problem.run(level, serial);
        for (std::int64_t row = 0; row < 3; ++row) {
          const std::int64_t counts[] = {7, 3, 5};
          for (std::int64_t tokens = 0; tokens <= counts[row]; ++tokens) {
            Problem prefix = problem.part(row, 0, tokens);
            prefix.options.capture_counts = {0};
            const Result state = prefix.run(level, serial);
            const std::vector<float> replayed = replay(problem, result, row, tokens);
            const std::string what =
                fmt::format("{} per-key {} row {} tokens {}", level_name(level), per_key, row, tokens);
            if (level == Level::scalar) {
              gdn_test::expect_close(replayed, state.state, 1e-6, DType::f32, what);
            } else {
              EXPECT_TRUE(same_bits(replayed, state.state)) << what;
            }
          }
        }
      }
    }
  }
}

TEST(GatedDeltaNetCapture, FollowsTheSpecification) {
  Options o;
  o.q_heads = o.k_heads = 2, o.v_heads = 6, o.capacity = 4;
  o.lengths = {1, 0, 4, 70};
  o.capture_counts = {4, 4, 2, 3};
  const Problem problem(o);
  SerialExecutor serial;
  const Result expected = problem.run(Level::scalar, serial);
  for (const Level level : supported_levels()) {
    const Result actual = problem.run(level, serial);
    gdn_test::expect_close(actual.capsule, expected.capsule, gdn_test::tolerance(o), DType::f32,
                           std::string(level_name(level)));
  }
}

TEST(GatedDeltaNetCapture, SlotsBeyondTheCountAreZero) {
  Options o;
  o.capacity = 4, o.lengths = {6, 2, 6}, o.capture_counts = {2, 9, -1};
  const Problem problem(o);
  SerialExecutor serial;
  const std::int64_t valid[] = {2, 2, 0};
  for (const Level level : supported_levels()) {
    const Result result = problem.run(level, serial);
    for (std::int64_t row = 0; row < 3; ++row) {
      for (std::int64_t slot = 0; slot < 4; ++slot) {
        const std::int64_t at = row * problem.shape.capsule_width() + slot * problem.shape.v_heads;
        EXPECT_EQ(result.capsule[static_cast<std::size_t>(at)] != 0, slot < valid[row])
            << level_name(level) << " row " << row << " slot " << slot;
      }
    }
  }
}

TEST(GatedDeltaNetCapture, InactiveCaptureZeroesTheCapsuleAndReadsNoCounts) {
  Options o;
  o.capacity = 3, o.lengths = {5, 70};
  const Problem problem(o);
  GatedDeltaNetArgs args = problem.args();
  args.capture_active = false;
  args.capture_count = nullptr;
  SerialExecutor serial;
  for (const Level level : supported_levels()) {
    const Result result = problem.run(level, serial, args);
    for (const float x : result.capsule) ASSERT_EQ(x, 0.0f) << level_name(level);
  }
}

}  // namespace
}  // namespace sluice

#include "kernels/cpu/gated_delta_net.h"

#include <xmmintrin.h>

#include "kernels/cpu/gated_delta_net_fixture.h"

namespace sluice {
namespace {

using gdn_test::expect_close;
using gdn_test::Options;
using gdn_test::Problem;
using gdn_test::Result;

std::string describe(const Options& o) {
  return fmt::format(
      "rule {} gate {} beta {} norm {} per-key {} heads {}/{}/{} dims {}/{} dtype {} gates {} rows {} first length {}",
      static_cast<int>(o.rule), static_cast<int>(o.gate), static_cast<int>(o.beta), o.qk_l2_norm, o.per_key, o.q_heads,
      o.k_heads, o.v_heads, o.k_dim, o.v_dim, dtype_name(o.dtype), dtype_name(o.gate_dtype), o.rows(),
      o.lengths.empty() ? -1 : o.lengths[0]);
}

void expect_levels_follow_specification(const Options& options, double bound = 0) {
  const Problem problem(options);
  SerialExecutor serial;
  const Result expected = problem.run(Level::scalar, serial);
  if (bound == 0) bound = gdn_test::tolerance(options);
  for (const Level level : supported_levels()) {
    if (level == Level::scalar) continue;
    const Result actual = problem.run(level, serial);
    const std::string what = fmt::format("{}: {}", level_name(level), describe(options));
    expect_close(actual.output, expected.output, bound, options.dtype, what + " output");
    expect_close(actual.state, expected.state, bound, DType::f32, what + " state");
    expect_close(actual.capsule, expected.capsule, bound, DType::f32, what + " capsule");
  }
}

constexpr UpdateRule kRules[] = {UpdateRule::linear, UpdateRule::gated, UpdateRule::delta, UpdateRule::gated_delta};

TEST(GatedDeltaNet, EveryRuleAndActivationFollowsTheSpecification) {
  for (const UpdateRule rule : kRules) {
    for (const GateActivation gate : {GateActivation::none, GateActivation::softplus, GateActivation::sigmoid}) {
      for (const BetaActivation beta : {BetaActivation::none, BetaActivation::sigmoid, BetaActivation::twice_sigmoid}) {
        for (const bool per_key : {false, true}) {
          Options o;
          o.rule = rule, o.gate = gate, o.beta = beta, o.per_key = per_key;
          o.lengths = {70, 3, 18};
          if (gate == GateActivation::none) o.decay_low = -1.0f, o.decay_high = -0.01f;
          expect_levels_follow_specification(o);
        }
      }
    }
  }
}

TEST(GatedDeltaNet, EveryLengthFollowsTheSpecification) {
  for (const std::int64_t length :
       {0, 1, 2, 3, 6, 7, 8, 9, 12, 15, 16, 17, 31, 32, 33, 63, 64, 65, 79, 80, 127, 130, 321}) {
    Options o;
    o.lengths = {length};
    expect_levels_follow_specification(o);
    o.has_initial_state = false;
    o.rule = UpdateRule::delta;
    expect_levels_follow_specification(o);
  }
}

TEST(GatedDeltaNet, OddDimensionsFollowTheSpecification) {
  const std::int64_t dims[][2] = {{1, 1},   {1, 9},   {3, 5},   {4, 33},  {7, 8},    {8, 7},   {15, 17},
                                  {16, 24}, {17, 16}, {24, 48}, {33, 65}, {100, 31}, {130, 20}};
  for (const auto& [k_dim, v_dim] : dims) {
    for (const bool per_key : {false, true}) {
      Options o;
      o.k_dim = k_dim, o.v_dim = v_dim, o.per_key = per_key;
      o.lengths = {67, 1, 20};
      expect_levels_follow_specification(o);
    }
  }
}

TEST(GatedDeltaNet, TheGeometryOfTheLargeModelsFollowsTheSpecification) {
  Options o;
  o.q_heads = o.k_heads = 2, o.v_heads = 6, o.k_dim = o.v_dim = 128;
  o.lengths = {130, 1, 64};
  expect_levels_follow_specification(o);
}

TEST(GatedDeltaNet, EveryHeadGroupingFollowsTheSpecification) {
  const std::int64_t heads[][3] = {{1, 1, 1}, {1, 1, 5}, {3, 3, 3}, {2, 2, 6},  {16, 16, 48}, {4, 2, 2},
                                   {6, 1, 2}, {2, 4, 8}, {4, 2, 8}, {1, 1, 22}, {8, 8, 8}};
  for (const auto& [q, k, v] : heads) {
    Options o;
    o.q_heads = q, o.k_heads = k, o.v_heads = v, o.k_dim = 16, o.v_dim = 24;
    o.lengths = {65, 2, 40};
    expect_levels_follow_specification(o);
    o.lengths = std::vector<std::int64_t>(20, 21);
    expect_levels_follow_specification(o);
  }
}

TEST(GatedDeltaNet, EveryDtypeFollowsTheSpecification) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const DType gate_dtype : {DType::f32, dtype}) {
      for (const bool per_key : {false, true}) {
        for (const bool norm : {false, true}) {
          Options o;
          o.dtype = dtype, o.gate_dtype = gate_dtype, o.per_key = per_key, o.qk_l2_norm = norm;
          o.k_dim = 36, o.v_dim = 21, o.lengths = {1, 90, 5};
          expect_levels_follow_specification(o);
        }
      }
    }
  }
}

TEST(GatedDeltaNet, ScaleMultipliesTheReadout) {
  Options o;
  o.lengths = {1, 70};
  o.scale = 0.375f;
  expect_levels_follow_specification(o);
}

TEST(GatedDeltaNet, StrongDecaysStayFiniteAndExact) {
  for (const float g : {-1000.0f, -200.0f, -100.0f, -90.0f, -30.0f, 0.0f}) {
    Options o;
    o.gate = GateActivation::none;
    o.lengths = {130, 9};
    o.decay_low = g, o.decay_high = g == 0 ? 0.0f : g * 0.5f;
    expect_levels_follow_specification(o);
  }
}

// One token in a while forgets everything, its neighbours nothing: sums of g in f32 would lose the small ones.
TEST(GatedDeltaNet, OneStrongDecayDoesNotBlurTheOthers) {
  Options o;
  o.gate = GateActivation::none;
  o.lengths = {128};
  o.decay_low = -0.02f, o.decay_high = -0.001f;
  Problem problem(o);
  for (std::size_t t = 5; t < 128; t += 20) {
    for (std::size_t h = 0; h < 4; ++h) problem.decay.set(t * 4 + h, t % 3 == 0 ? -200.0f : -60.0f);
  }
  SerialExecutor serial;
  const Result expected = problem.run(Level::scalar, serial);
  for (const Level level : supported_levels()) {
    const Result actual = problem.run(level, serial);
    expect_close(actual.output, expected.output, gdn_test::tolerance(o), o.dtype,
                 fmt::format("{} output", level_name(level)));
    expect_close(actual.state, expected.state, gdn_test::tolerance(o), o.dtype,
                 fmt::format("{} state", level_name(level)));
  }
}

TEST(GatedDeltaNet, LongKeysTakeTheRecurrenceAndFollowTheSpecification) {
  for (const float length : {0.5f, 1.2f, 1.4f}) {
    Options o;
    o.qk_l2_norm = false, o.key_length = length, o.gate = GateActivation::none, o.beta = BetaActivation::none;
    o.decay_low = -0.5f, o.decay_high = -0.1f;
    o.lengths = {130};
    expect_levels_follow_specification(o);
  }
}

TEST(GatedDeltaNet, GrowingStatesFollowTheSpecification) {
  Options o;
  o.gate = GateActivation::none;
  o.decay_low = -0.2f, o.decay_high = 0.02f;  // g > 0: the state grows at some tokens
  o.lengths = {100};
  expect_levels_follow_specification(o);
}

TEST(GatedDeltaNet, PackedAndSeparateInputsGiveTheSameBits) {
  Options o;
  o.lengths = {70, 1, 20};
  const Problem problem(o);
  const auto width = static_cast<std::size_t>(2 * o.k_heads * o.k_dim + o.v_heads * o.v_dim);
  std::vector<float> packed(width * static_cast<std::size_t>(o.tokens()));
  const auto place = [&](const gdn_test::Buffer& from, std::size_t columns, std::size_t at) {
    for (std::size_t i = 0; i < from.size(); ++i) packed[i / columns * width + at + i % columns] = from.get(i);
  };
  const auto key_width = static_cast<std::size_t>(o.k_heads * o.k_dim);
  place(problem.query, key_width, 0);
  place(problem.key, key_width, key_width);
  place(problem.value, static_cast<std::size_t>(o.v_heads * o.v_dim), 2 * key_width);
  GatedDeltaNetArgs args = problem.args();
  const auto stride = static_cast<std::int64_t>(width);
  args.query = {packed.data(), stride, o.k_dim};
  args.key = {packed.data() + key_width, stride, o.k_dim};
  args.value = {packed.data() + 2 * key_width, stride, o.v_dim};
  SerialExecutor serial;
  for (const Level level : supported_levels()) {
    const Result separate = problem.run(level, serial);
    const Result fused = problem.run(level, serial, args);
    EXPECT_TRUE(gdn_test::same_bits(separate.output, fused.output)) << level_name(level);
    EXPECT_TRUE(gdn_test::same_bits(separate.state, fused.state)) << level_name(level);
  }
}

TEST(GatedDeltaNet, EqualRowsNeedNoOffsets) {
  Options o;
  o.lengths = {33, 33, 33};
  const Problem problem(o);
  GatedDeltaNetArgs args = problem.args();
  args.cu_seqlens = nullptr;
  SerialExecutor serial;
  for (const Level level : supported_levels()) {
    EXPECT_EQ(problem.run(level, serial), problem.run(level, serial, args)) << level_name(level);
  }
}

TEST(GatedDeltaNet, EmptyRowsPassTheirStateThrough) {
  Options o;
  o.lengths = {0, 20, 0, 0, 1, 0};
  expect_levels_follow_specification(o);
  const Problem problem(o);
  SerialExecutor serial;
  const auto row = static_cast<std::size_t>(o.v_heads * o.v_dim * o.k_dim);
  for (const Level level : supported_levels()) {
    const Result result = problem.run(level, serial);
    for (std::size_t i = 0; i < row; ++i)
      ASSERT_EQ(result.state[i], problem.state.get(i)) << level_name(level) << " element " << i;
  }
}

TEST(GatedDeltaNet, EmptyBatchesDoNothing) {
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{}, {0}, {0, 0, 0}}) {
    Options o;
    o.lengths = lengths;
    expect_levels_follow_specification(o);
  }
}

TEST(GatedDeltaNet, TheStateMayBeUpdatedInPlace) {
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{1, 1}, {70, 0, 3}, {17}, {128}}) {
    Options o;
    o.lengths = lengths;
    const Problem problem(o);
    SerialExecutor serial;
    for (const Level level : supported_levels()) {
      const Result apart = problem.run(level, serial);
      gdn_test::Buffer state = problem.state, output = problem.value;
      GatedDeltaNetArgs args = problem.args();
      args.initial_state = args.final_state = static_cast<float*>(state.data());
      args.output = output.data();
      std::vector<std::byte> scratch(gated_delta_net_scratch_bytes(level, args.shape));
      gated_delta_net(level, args, scratch, serial);
      EXPECT_TRUE(gdn_test::same_bits(state.values(), apart.state)) << level_name(level);
      EXPECT_TRUE(gdn_test::same_bits(output.values(), apart.output)) << level_name(level);
    }
  }
}

TEST(GatedDeltaNet, AnUnwantedStateChangesNoOutput) {
  Options o;
  o.lengths = {70, 1, 130};
  const Problem problem(o);
  SerialExecutor serial;
  for (const Level level : supported_levels()) {
    const Result with_state = problem.run(level, serial);
    gdn_test::Buffer output = problem.value;
    GatedDeltaNetArgs args = problem.args();
    args.output = output.data();
    std::vector<std::byte> scratch(gated_delta_net_scratch_bytes(level, args.shape));
    gated_delta_net(level, args, scratch, serial);
    EXPECT_TRUE(gdn_test::same_bits(output.values(), with_state.output)) << level_name(level);
  }
}

TEST(GatedDeltaNet, AbsurdShapesAskForMoreScratchThanThereIs) {
  GatedDeltaNetShape shape{1 << 20, 1 << 20, 1, 1, 1, std::int64_t{1} << 31, std::int64_t{1} << 31, 0, false};
  for (const Level level : supported_levels())
    EXPECT_EQ(gated_delta_net_scratch_bytes(level, shape), SIZE_MAX / 2) << level_name(level);
}

TEST(GatedDeltaNet, TheThreadsFloatingPointModeIsLeftAsItWas) {
  Options o;
  o.lengths = {70, 1};
  const Problem problem(o);
  SerialExecutor serial;
  const unsigned before = _mm_getcsr();
  for (const Level level : supported_levels()) {
    problem.run(level, serial);
    EXPECT_EQ(_mm_getcsr() & ~0x3fu, before & ~0x3fu) << level_name(level);  // but for the sticky exception flags
  }
}

// 4096 tokens with weak decay against the double specification: rounding may not pile up with the length.
TEST(GatedDeltaNet, LongSequencesDoNotDrift) {
  for (const std::int64_t length : {256, 4096}) {
    Options o;
    o.q_heads = o.k_heads = 1, o.v_heads = 2;
    o.gate = GateActivation::none, o.decay_low = -2e-3f, o.decay_high = -1e-4f;
    o.lengths = {length};
    expect_levels_follow_specification(o);
  }
}

}  // namespace
}  // namespace sluice

#include "kernels/cpu/causal_conv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/executor.h"
#include "kernels/cpu/test_tensor.h"

namespace sluice {
namespace {

using test::all_within;
using test::equal_bits;
using test::kFloatTypes;
using test::RecordedCall;
using test::rounding;
using test::smallest_step;
using test::TestTensor;

struct Problem {
  DType type = DType::f32;
  std::vector<std::int32_t> lengths = {};
  std::int64_t channels = 0;
  std::int64_t kernel = 4;
  std::int64_t dilation = 1;
  ConvActivation activation = ConvActivation::silu;
  std::int64_t capacity = 0;
  std::vector<std::int32_t> counts = {};
  bool bias = true;
  bool state = true;
};

// The buffers of one call, filled from a seed, and what it made of them.
struct Call {
  explicit Call(const Problem& p) : problem(p), cu{0} {
    for (const std::int32_t n : p.lengths) cu.push_back(cu.back() + n);
    shape.tokens = cu.back();
    shape.rows = static_cast<std::int64_t>(p.lengths.size());
    shape.channels = p.channels;
    shape.kernel = p.kernel;
    shape.dilation = p.dilation;
    shape.capture_capacity = p.capacity;
    input = TestTensor::random(p.type, shape.tokens * p.channels, 1);
    weight = TestTensor::random(p.type, p.channels * p.kernel, 2, 0.5f);
    bias = TestTensor::random(p.type, p.channels, 3);
    state = TestTensor::random(p.type, shape.rows * p.channels * shape.state_length(), 4);
    output = TestTensor(p.type, shape.tokens * p.channels, 99);
    capture = TestTensor(p.type, shape.rows * p.capacity * p.channels, 99);
    kept = TestTensor(p.type, state.size(), 99);
  }

  void run(Level level, Executor& executor, bool aliased = false) {
    CausalConvArgs args;
    args.shape = shape;
    args.type = problem.type;
    args.cu_seqlens = cu.data();
    args.capture_count = problem.capacity > 0 ? problem.counts.data() : nullptr;
    args.input = input.data();
    args.weight = weight.data();
    args.bias = problem.bias ? bias.data() : nullptr;
    if (aliased) kept = state;
    args.initial_state = !problem.state ? nullptr : aliased ? kept.data() : state.data();
    args.activation = problem.activation;
    args.output = output.data();
    args.final_state = kept.data();
    args.capture = problem.capacity > 0 ? capture.data() : nullptr;
    std::vector<std::byte> scratch(causal_conv_scratch_bytes(shape, problem.type));
    causal_conv(level, args, scratch, executor);
  }

  // (kernel + 1) f32 roundings of the sum of |terms|; silu has slope at most 1.1 and adds 4 roundings; then the type's.
  double tolerance(std::int64_t i) const {
    const std::int64_t c = i % shape.channels;
    double magnitude = std::fabs(bias[c]);
    for (std::int64_t j = 0; j < shape.kernel; ++j) magnitude += 5.5 * std::fabs(double{weight[c * shape.kernel + j]});
    const double steps = 1.1 * static_cast<double>(shape.kernel + 1) + 4;
    return (steps * 0x1p-24 + rounding(problem.type)) * magnitude + smallest_step(problem.type);
  }

  Problem problem;
  std::vector<std::int32_t> cu;
  CausalConvShape shape;
  TestTensor input, weight, bias, state, output, capture, kept;
};

std::vector<Problem> problems() {
  std::vector<Problem> list;
  for (const DType type : kFloatTypes) {
    list.push_back({.type = type, .lengths = {1, 1, 1}, .channels = 512});
    list.push_back({.type = type, .lengths = {5, 0, 1, 2, 17}, .channels = 513, .bias = false});
    list.push_back({.type = type, .lengths = {1, 3, 9}, .channels = 37, .state = false});
    list.push_back({.type = type, .lengths = {1, 30}, .channels = 64, .kernel = 3, .dilation = 5});
    list.push_back({.type = type, .lengths = {2, 1}, .channels = 33, .kernel = 1, .activation = ConvActivation::none});
    list.push_back({.type = type, .lengths = {4, 11}, .channels = 20, .kernel = 9, .activation = ConvActivation::none});
    list.push_back({.type = type, .lengths = {7, 1, 6}, .channels = 2500});
    list.push_back({.type = type, .lengths = {3, 1, 3}, .channels = 70, .capacity = 4, .counts = {2, 3, 9}});
    list.push_back({.type = type, .lengths = {1, 1}, .channels = 256, .capacity = 2, .counts = {-1, 1}});
  }
  return list;
}

TEST(CausalConv, EveryLevelAgreesWithTheSpecification) {
  SerialExecutor serial;
  for (const Problem& problem : problems()) {
    Call expected(problem);
    expected.run(Level::scalar, serial);
    for (const Level level : supported_levels()) {
      Call got(problem);
      got.run(level, serial);
      EXPECT_TRUE(all_within(got.output, expected.output, [&](std::int64_t i) { return expected.tolerance(i); }))
          << level_name(level) << " channels " << problem.channels << " kernel " << problem.kernel;
      EXPECT_TRUE(equal_bits(got.kept, expected.kept)) << level_name(level);
      EXPECT_TRUE(equal_bits(got.capture, expected.capture)) << level_name(level);
    }
  }
}

TEST(CausalConv, StateUpdatedInPlaceIsTheStateWrittenApart) {
  SerialExecutor serial;
  for (const Problem& problem : problems()) {
    if (!problem.state) continue;
    for (const Level level : supported_levels()) {
      Call apart(problem);
      Call aliased(problem);
      apart.run(level, serial);
      aliased.run(level, serial, true);
      EXPECT_TRUE(equal_bits(aliased.kept, apart.kept)) << level_name(level);
      EXPECT_TRUE(equal_bits(aliased.output, apart.output)) << level_name(level);
    }
  }
}

TEST(CausalConv, BitsDoNotDependOnThreads) {
  std::vector<Problem> list = problems();
  list.push_back({.lengths = {40, 1, 9}, .channels = 3000});  // work enough to be shared out
  for (const Problem& problem : list) {
    for (const Level level : supported_levels()) {
      Call one(problem);
      SerialExecutor serial;
      one.run(level, serial);
      for (const int threads : {2, 3}) {
        Call many(problem);
        ThreadPool pool(threads);
        many.run(level, pool);
        EXPECT_TRUE(equal_bits(many.output, one.output)) << level_name(level) << " threads " << threads;
        EXPECT_TRUE(equal_bits(many.kept, one.kept)) << level_name(level) << " threads " << threads;
      }
    }
  }
}

// Runs the tokens of one row in pieces, carrying the state; the outputs joined.
TestTensor run_in_pieces(const Call& whole, const std::vector<std::int32_t>& pieces, Level level) {
  SerialExecutor serial;
  const std::int64_t channels = whole.shape.channels;
  TestTensor joined(whole.problem.type, whole.output.size());
  TestTensor state = whole.state;
  std::int64_t token = 0;
  for (const std::int32_t n : pieces) {
    Problem problem = whole.problem;
    problem.lengths = {n};
    Call piece(problem);
    piece.weight = whole.weight;
    piece.bias = whole.bias;
    piece.state = state;
    for (std::int64_t i = 0; i < n * channels; ++i) piece.input.set(i, whole.input[token * channels + i]);
    piece.run(level, serial);
    for (std::int64_t i = 0; i < n * channels; ++i) joined.set(token * channels + i, piece.output[i]);
    state = piece.kept;
    token += n;
  }
  return joined;
}

TEST(CausalConv, BitsDoNotDependOnWhereARowIsCut) {
  SerialExecutor serial;
  for (const DType type : kFloatTypes) {
    for (const std::int64_t dilation : {1, 3}) {
      Call whole({.type = type, .lengths = {19}, .channels = 320, .dilation = dilation});
      for (const Level level : supported_levels()) {
        whole.run(level, serial);
        for (const std::vector<std::int32_t>& pieces :
             {std::vector<std::int32_t>(19, 1), std::vector<std::int32_t>{2, 1, 9, 7}, {18, 1}}) {
          EXPECT_TRUE(equal_bits(run_in_pieces(whole, pieces, level), whole.output)) << level_name(level);
        }
      }
    }
  }
}

TEST(CausalConv, BitsDoNotDependOnCompany) {
  SerialExecutor serial;
  Call batch({.lengths = {6, 0, 1, 40}, .channels = 300});
  for (const Level level : supported_levels()) {
    batch.run(level, serial);
    for (std::size_t row = 0; row < batch.problem.lengths.size(); ++row) {
      Problem alone_problem = batch.problem;
      alone_problem.lengths = {batch.problem.lengths[row]};
      Call alone(alone_problem);
      const std::int64_t first = batch.cu[row] * batch.shape.channels;
      const std::int64_t state = static_cast<std::int64_t>(row) * alone.state.size();
      for (std::int64_t i = 0; i < alone.input.size(); ++i) alone.input.set(i, batch.input[first + i]);
      for (std::int64_t i = 0; i < alone.state.size(); ++i) alone.state.set(i, batch.state[state + i]);
      alone.run(level, serial);
      for (std::int64_t i = 0; i < alone.output.size(); ++i) ASSERT_EQ(alone.output[i], batch.output[first + i]);
      for (std::int64_t i = 0; i < alone.kept.size(); ++i) ASSERT_EQ(alone.kept[i], batch.kept[state + i]);
    }
  }
}

// A convolution of one tap of weight 1 is the activation itself.
TEST(CausalConv, SiluIsAccurateOverItsWholeRange) {
  SerialExecutor serial;
  Problem problem{.lengths = {4096}, .channels = 32, .kernel = 1, .bias = false};
  Call call(problem);
  call.weight = TestTensor(DType::f32, 32, 1);
  for (std::int64_t i = 0; i < call.input.size(); ++i) {
    call.input.set(i, -80.f + 180.f * static_cast<float>(i) / static_cast<float>(call.input.size()));
  }
  for (const Level level : supported_levels()) {
    call.run(level, serial);
    for (std::int64_t i = 0; i < call.input.size(); ++i) {
      const double x = call.input[i];
      const double exact = x / (1 + std::exp(-x));
      ASSERT_LE(std::fabs(call.output[i] - exact), 3 * 0x1p-23 * std::fabs(exact)) << level_name(level) << " x " << x;
    }
  }
}

TEST(CausalConv, AnEmptyBatchIsLegal) {
  SerialExecutor serial;
  for (const Level level : supported_levels()) {
    Call call({.lengths = {}, .channels = 40});
    call.run(level, serial);
    EXPECT_TRUE(call.output.guards_intact() && call.kept.guards_intact());
  }
}

// The recorded cases are dense [B, C, L] or channels-last [B, L, C]; each batch entry is one packed row.
TEST(CausalConv, AgreesWithTheRuntime) {
  struct Case {
    const char* name;
    bool channels_last;
    std::int64_t kernel, dilation, length;
    ConvActivation activation;
  };
  const Case cases[] = {{"conv_silu_dil1_L1_cl0_K4", false, 4, 1, 1, ConvActivation::silu},
                        {"conv_silu_dil1_L2_cl0_K4", false, 4, 1, 2, ConvActivation::silu},
                        {"conv_silu_dil1_L6_cl0_K4", false, 4, 1, 6, ConvActivation::silu},
                        {"conv_none_dil2_L6_cl0_K3", false, 3, 2, 6, ConvActivation::none},
                        {"conv_silu_dil1_L5_cl1_K4", true, 4, 1, 5, ConvActivation::silu},
                        {"conv_none_dil1_L3_cl0_K1", false, 1, 1, 3, ConvActivation::none}};
  SerialExecutor serial;
  for (const Case& c : cases) {
    const RecordedCall recorded(c.name);
    constexpr std::int64_t kChannels = 3;
    const auto packed = [&](const TestTensor& t) {  // [2, C, L] -> [2 * L, C]
      if (c.channels_last) return t;
      TestTensor out(DType::f32, t.size());
      for (std::int64_t i = 0; i < t.size(); ++i) {
        const std::int64_t l = i % c.length, channel = i / c.length % kChannels, b = i / (c.length * kChannels);
        out.set((b * c.length + l) * kChannels + channel, t[i]);
      }
      return out;
    };
    const auto channels_first = [&](const TestTensor& t) {  // [2, 3, C] -> [2, C, 3], the state of a channels-last call
      if (!c.channels_last) return t;
      TestTensor out(DType::f32, t.size());
      for (std::int64_t i = 0; i < t.size(); ++i) out.set(i / 9 * 9 + i % 3 * 3 + i / 3 % 3, t[i]);
      return out;
    };
    const auto length = static_cast<std::int32_t>(c.length);
    Call call({.lengths = {length, length},
               .channels = kChannels,
               .kernel = c.kernel,
               .dilation = c.dilation,
               .activation = c.activation});
    call.input = packed(recorded.input_tensor(0));
    call.weight = recorded.input_tensor(1);
    call.bias = recorded.input_tensor(2);
    call.state = channels_first(recorded.input_tensor(3));
    for (const Level level : supported_levels()) {
      call.run(level, serial);
      EXPECT_TRUE(all_within(call.output, packed(recorded.output("o")),
                             [&](std::int64_t i) {
                               return 2 * call.tolerance(i);  // theirs rounds too
                             }))
          << c.name << " " << level_name(level);
      EXPECT_TRUE(all_within(call.kept, channels_first(recorded.output("ps")), [](std::int64_t) { return 1e-7; }))
          << c.name;
    }
  }
}

TEST(CuSeqlens, EveryMalformationIsNamedWithItsPlace) {
  const auto check = [](std::vector<std::int32_t> offsets, std::int64_t tokens) {
    return validate_cu_seqlens(offsets, tokens);
  };
  EXPECT_TRUE(check({0}, 0).ok());
  EXPECT_TRUE(check({0, 0, 3, 3}, 3).ok());
  EXPECT_EQ(check({}, 0).error, CuSeqlensError::empty);
  EXPECT_EQ(check({1, 3}, 3).error, CuSeqlensError::first_not_zero);
  EXPECT_EQ(check({-1, 3}, 3).error, CuSeqlensError::first_not_zero);
  const CuSeqlensCheck decreasing = check({0, 4, 2, 5}, 5);
  EXPECT_EQ(decreasing.error, CuSeqlensError::decreasing);
  EXPECT_EQ(decreasing.index, 2);
  EXPECT_EQ(decreasing.value, 2);
  EXPECT_EQ(check({0, -2147483647 - 1, 5}, 5).error, CuSeqlensError::decreasing);
  const CuSeqlensCheck last = check({0, 4}, 5);
  EXPECT_EQ(last.error, CuSeqlensError::last_not_total);
  EXPECT_EQ(last.index, 1);
  EXPECT_EQ(last.value, 4);
  EXPECT_EQ(check({0}, 1).error, CuSeqlensError::last_not_total);
}

}  // namespace
}  // namespace sluice

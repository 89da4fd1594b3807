#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "base/executor.h"
#include "kernels/cpu/gated_add.h"
#include "kernels/cpu/gated_rms_norm.h"
#include "kernels/cpu/linear_attention_gate.h"
#include "kernels/cpu/mrope.h"
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

struct Norm {
  Norm(DType type, std::int64_t group_count, std::int64_t group_width)
      : groups(group_count),
        width(group_width),
        x(TestTensor::random(type, groups * width, 1, 2)),
        scale(TestTensor::random(type, width, 2, 0.3f, 1)),
        gate(TestTensor::random(type, groups * width, 3, 2)) {}

  TestTensor run(Level level, Executor& executor, NormGate activation = NormGate::silu) {
    TestTensor y(x.type(), x.size(), 99);
    GatedRmsNormArgs args;
    args.groups = groups;
    args.width = width;
    args.type = x.type();
    args.input = x.data();
    args.scale = scale.data();
    args.gate = gate.data();
    args.epsilon = 1e-6f;
    args.activation = activation;
    args.output = y.data();
    gated_rms_norm(level, args, executor);
    return y;
  }

  std::int64_t groups, width;
  TestTensor x, scale, gate;
};

// Relative: the mean's roundings (width / 8 lanes' steps at most, halved by the root), then about ten operations of one
// rounding each, the exponential's 1.1 units among them; then the type's own.
double norm_tolerance(DType type, std::int64_t width, double value) {
  const double steps = static_cast<double>(width) / 16 + 12;
  return (steps * 0x1p-24 + rounding(type)) * std::fabs(value) * 1.01 + smallest_step(type);
}

TEST(GatedRmsNorm, EveryLevelAgreesWithTheSpecification) {
  SerialExecutor serial;
  for (const DType type : kFloatTypes) {
    for (const std::int64_t width : {1, 4, 31, 64, 128, 200}) {
      for (const NormGate activation : {NormGate::silu, NormGate::sigmoid}) {
        Norm norm(type, 9, width);
        const TestTensor expected = norm.run(Level::scalar, serial, activation);
        for (const Level level : supported_levels()) {
          EXPECT_TRUE(all_within(norm.run(level, serial, activation), expected,
                                 [&](std::int64_t i) { return norm_tolerance(type, width, expected[i]); }))
              << level_name(level) << " " << dtype_name(type) << " width " << width;
        }
      }
    }
  }
}

TEST(GatedRmsNorm, BitsDependNeitherOnThreadsNorOnCompany) {
  for (const DType type : kFloatTypes) {
    Norm norm(type, 700, 128);
    Norm alone(type, 1, 128);
    alone.scale = norm.scale;
    for (std::int64_t i = 0; i < 128; ++i) alone.x.set(i, norm.x[433 * 128 + i]);
    for (std::int64_t i = 0; i < 128; ++i) alone.gate.set(i, norm.gate[433 * 128 + i]);
    for (const Level level : supported_levels()) {
      SerialExecutor serial;
      const TestTensor one = norm.run(level, serial);
      for (const int threads : {2, 3}) {
        ThreadPool pool(threads);
        EXPECT_TRUE(equal_bits(norm.run(level, pool), one)) << level_name(level) << " threads " << threads;
      }
      const TestTensor solo = alone.run(level, serial);
      for (std::int64_t i = 0; i < 128; ++i) ASSERT_EQ(solo[i], one[433 * 128 + i]);
    }
  }
}

TEST(GatedRmsNorm, AgreesWithTheRuntime) {
  const RecordedCall recorded("gatedrms");
  SerialExecutor serial;
  Norm norm(DType::f32, 6, 4);
  norm.x = recorded.input_tensor(0);
  norm.scale = recorded.input_tensor(1);
  norm.gate = recorded.input_tensor(2);
  const TestTensor expected = recorded.output("y");
  for (const Level level : supported_levels()) {
    EXPECT_TRUE(all_within(norm.run(level, serial), expected, [&](std::int64_t i) {
      return 2 * norm_tolerance(DType::f32, 4, expected[i]);
    })) << level_name(level);
  }
}

struct Gate {
  Gate(DType type, std::int64_t token_count, std::int64_t head_count)
      : tokens(token_count),
        heads(head_count),
        a(TestTensor::random(type, tokens * heads, 1, 6)),
        b(TestTensor::random(type, tokens * heads, 2, 4)),
        dt_bias(TestTensor::random(DType::f32, heads, 3)),
        decay_scale(TestTensor::random(DType::f32, heads, 4, 2, -4)),
        decay(type, tokens * heads, 99),
        beta(type, tokens * heads, 99) {}

  void run(Level level, Executor& executor, bool with_beta = true) {
    LinearAttentionGateArgs args;
    args.tokens = tokens;
    args.heads = heads;
    args.type = a.type();
    args.a = a.data();
    args.dt_bias = static_cast<const float*>(dt_bias.data());
    args.decay_scale = static_cast<const float*>(decay_scale.data());
    if (with_beta) args.b = b.data();
    args.decay = decay.data();
    if (with_beta) args.beta = beta.data();
    linear_attention_gate(level, args, executor);
  }

  std::int64_t tokens, heads;
  TestTensor a, b, dt_bias, decay_scale, decay, beta;
};

// softplus and sigmoid are within 3 units in the last place of f32; rounding a + dt_bias moves the argument by 2^-24 of
// its size, and softplus's relative slope is at most 1. One more rounding for the product, then the type's.
double gate_tolerance(DType type, double value, double argument) {
  return ((8 + std::fabs(argument)) * 0x1p-24 + rounding(type)) * std::fabs(value) + smallest_step(type);
}

TEST(LinearAttentionGate, EveryLevelAgreesWithTheSpecification) {
  SerialExecutor serial;
  for (const DType type : kFloatTypes) {
    for (const std::int64_t heads : {1, 16, 32, 48, 37}) {
      Gate expected(type, 25, heads);
      expected.run(Level::scalar, serial);
      for (const Level level : supported_levels()) {
        Gate got(type, 25, heads);
        got.run(level, serial);
        EXPECT_TRUE(all_within(got.decay, expected.decay,
                               [&](std::int64_t i) {
                                 return gate_tolerance(type, expected.decay[i],
                                                       double{expected.a[i]} + double{expected.dt_bias[i % heads]});
                               }))
            << level_name(level) << " heads " << heads;
        EXPECT_TRUE(all_within(got.beta, expected.beta,
                               [&](std::int64_t i) { return gate_tolerance(type, expected.beta[i], 0); }))
            << level_name(level) << " heads " << heads;
      }
    }
  }
}

TEST(LinearAttentionGate, ExtremeArgumentsStayFiniteAndExact) {
  SerialExecutor serial;
  for (const Level level : supported_levels()) {
    Gate gate(DType::f32, 1, 6);
    const float arguments[] = {-300, -90, 0, 90, 3e38f, 25};
    for (std::int64_t i = 0; i < 6; ++i) gate.a.set(i, arguments[i]);
    gate.b = gate.a;
    gate.dt_bias = TestTensor(DType::f32, 6, 0);
    gate.decay_scale = TestTensor(DType::f32, 6, -1);
    gate.run(level, serial);
    EXPECT_NEAR(gate.decay[0], 0, 1e-38) << level_name(level);
    EXPECT_NEAR(gate.decay[1], 0, 1e-38);
    EXPECT_NEAR(gate.decay[2], -std::log(2.0), 2e-7);
    EXPECT_EQ(gate.decay[3], -90);
    EXPECT_EQ(gate.decay[4], -3e38f);
    EXPECT_EQ(gate.decay[5], -25);
    EXPECT_NEAR(gate.beta[0], 0, 1e-37);
    EXPECT_EQ(gate.beta[2], 0.5f);
    EXPECT_EQ(gate.beta[4], 1);
  }
}

TEST(LinearAttentionGate, BetaMayBeLeftOutAndThreadsChangeNothing) {
  SerialExecutor serial;
  for (const Level level : supported_levels()) {
    Gate one(DType::bf16, 900, 48);
    one.run(level, serial, false);
    EXPECT_EQ(one.beta[0], 99);
    ThreadPool pool(3);
    Gate many(DType::bf16, 900, 48);
    many.run(level, pool);
    EXPECT_TRUE(equal_bits(many.decay, one.decay)) << level_name(level);
  }
}

TEST(LinearAttentionGate, AgreesWithTheRuntime) {
  const RecordedCall recorded("gate");
  SerialExecutor serial;
  Gate gate(DType::f32, 6, 4);
  gate.a = recorded.input_tensor(0);
  gate.dt_bias = recorded.input_tensor(1);
  gate.decay_scale = recorded.input_tensor(2);
  gate.b = recorded.input_tensor(3);
  const TestTensor decay = recorded.output("d");
  const TestTensor beta = recorded.output("be");
  for (const Level level : supported_levels()) {
    gate.run(level, serial);
    // The runtime forms ln(1 + e^x) without log1p: for small results its error is one unit of 1, not of the result.
    EXPECT_TRUE(all_within(gate.decay, decay, [&](std::int64_t i) {
      return 0x1p-23 * (std::fabs(decay[i]) * 4 + std::fabs(gate.decay_scale[i % 4]) * 2);
    })) << level_name(level);
    // Its sigmoid is a rational function, good to one unit of 1 as well.
    EXPECT_TRUE(all_within(gate.beta, beta, [](std::int64_t) { return 0x1p-23; })) << level_name(level);
  }
}

TestTensor gated_sum(Level level, Executor& executor, TestTensor& x, TestTensor& y, TestTensor& gate) {
  TestTensor out(x.type(), x.size(), 99);
  GatedAddArgs args;
  args.rows = gate.size();
  args.width = x.size() / gate.size();
  args.type = x.type();
  args.x = x.data();
  args.y = y.data();
  args.gate = gate.data();
  args.output = out.data();
  gated_add(level, args, executor);
  return out;
}

TEST(GatedAdd, EveryLevelHasTheBitsOfTheSpecification) {
  for (const DType type : kFloatTypes) {
    for (const std::int64_t width : {1, 7, 48, 1031}) {
      TestTensor x = TestTensor::random(type, 40 * width, 1);
      TestTensor y = TestTensor::random(type, 40 * width, 2);
      TestTensor gate = TestTensor::random(type, 40, 3);
      SerialExecutor serial;
      const TestTensor expected = gated_sum(Level::scalar, serial, x, y, gate);
      ThreadPool pool(3);
      for (const Level level : supported_levels()) {
        EXPECT_TRUE(equal_bits(gated_sum(level, serial, x, y, gate), expected)) << level_name(level) << " " << width;
        EXPECT_TRUE(equal_bits(gated_sum(level, pool, x, y, gate), expected)) << level_name(level) << " " << width;
      }
    }
  }
}

TEST(GatedAdd, AgreesWithTheRuntime) {
  const RecordedCall recorded("gatedadd");
  TestTensor x = recorded.input_tensor(0);
  TestTensor y = recorded.input_tensor(1);
  TestTensor gate = recorded.input_tensor(2);
  SerialExecutor serial;
  for (const Level level : supported_levels()) {
    EXPECT_TRUE(all_within(gated_sum(level, serial, x, y, gate), recorded.output("o"), [](std::int64_t) {
      return 1e-7;
    })) << level_name(level);
  }
}

struct Rotary {
  Rotary(DType type, const MropeShape& s) : shape(s) {
    const std::int64_t elements = s.tokens * s.heads * s.head_dim;
    x = TestTensor::random(type, elements, 1);
    cos = TestTensor(type, s.table_rows * s.rotary_dim / 2);
    sin = TestTensor(type, s.table_rows * s.rotary_dim / 2);
    for (std::int64_t i = 0; i < cos.size(); ++i) {
      cos.set(i, std::cos(static_cast<float>(i) * 0.37f));
      sin.set(i, std::sin(static_cast<float>(i) * 0.37f));
    }
    for (std::int64_t i = 0; i < s.streams * s.tokens; ++i) positions.push_back(i * 7 % s.table_rows);
    section[0] = s.rotary_dim / 2;
  }

  TestTensor run(Level level, Executor& executor, bool in_place = false) {
    TestTensor y = in_place ? x : TestTensor(x.type(), x.size(), 99);
    MropeArgs args;
    args.shape = shape;
    args.type = x.type();
    args.input = in_place ? y.data() : x.data();
    args.token_stride = heads_first ? shape.head_dim : shape.heads * shape.head_dim;
    args.head_stride = heads_first ? shape.tokens * shape.head_dim : shape.head_dim;
    args.positions = positions.data();
    args.cos = cos.data();
    args.sin = sin.data();
    args.interleaved = interleaved;
    for (int i = 0; i < 3; ++i) args.section[i] = section[i];
    args.layout = layout;
    args.output = y.data();
    mrope(level, args, executor);
    return y;
  }

  MropeShape shape;
  bool heads_first = false;
  bool interleaved = false;
  MropeLayout layout = MropeLayout::chunked;
  std::int64_t section[3] = {0, 0, 0};
  std::vector<std::int64_t> positions;
  TestTensor x, cos, sin;
};

// Two products and a sum of values below 5.5: three f32 roundings, then the type's.
double rotary_tolerance(DType type) { return 11 * (3 * 0x1p-24 + rounding(type)); }

TEST(Mrope, EveryLevelAgreesWithTheSpecification) {
  SerialExecutor serial;
  for (const DType type : kFloatTypes) {
    for (const std::int64_t rotary_dim : {2, 6, 34, 64}) {
      for (const int variant : {0, 1, 2, 3, 4}) {
        Rotary rotary(type, {.tokens = 6,
                             .heads = 3,
                             .head_dim = 70,
                             .rotary_dim = rotary_dim,
                             .table_rows = 31,
                             .streams = variant >= 2 ? 3 : 1});
        rotary.interleaved = variant == 1 || variant == 3;
        rotary.heads_first = variant >= 3;
        rotary.layout = variant == 2 ? MropeLayout::interleaved : MropeLayout::chunked;
        const std::int64_t third = rotary_dim / 6;
        rotary.section[0] = rotary_dim / 2 - 2 * third;
        rotary.section[1] = rotary.section[2] = third;
        const TestTensor expected = rotary.run(Level::scalar, serial);
        for (const Level level : supported_levels()) {
          EXPECT_TRUE(
              all_within(rotary.run(level, serial), expected, [&](std::int64_t) { return rotary_tolerance(type); }))
              << level_name(level) << " rotary_dim " << rotary_dim << " variant " << variant;
          EXPECT_TRUE(equal_bits(rotary.run(level, serial, true), rotary.run(level, serial))) << level_name(level);
        }
      }
    }
  }
}

TEST(Mrope, BitsDoNotDependOnThreads) {
  for (const Level level : supported_levels()) {
    Rotary rotary(DType::f32, {.tokens = 300, .heads = 4, .head_dim = 64, .rotary_dim = 16, .table_rows = 400});
    SerialExecutor serial;
    const TestTensor one = rotary.run(level, serial);
    ThreadPool pool(3);
    EXPECT_TRUE(equal_bits(rotary.run(level, pool), one)) << level_name(level);
  }
}

TEST(Mrope, AgreesWithTheRuntime) {
  struct Case {
    const char* name;
    std::int64_t streams;
    MropeLayout layout;
  };
  SerialExecutor serial;
  for (const Case& c :
       {Case{"mrope_interleaved_partial", 3, MropeLayout::interleaved},
        Case{"mrope_chunked_partial", 3, MropeLayout::chunked}, Case{"rope_partial", 1, MropeLayout::chunked}}) {
    const RecordedCall recorded(c.name);
    Rotary rotary(DType::f32,
                  {.tokens = 3, .heads = 2, .head_dim = 12, .rotary_dim = 8, .table_rows = 8, .streams = c.streams});
    rotary.x = recorded.input_tensor(0);
    rotary.positions.clear();
    for (const double p : recorded.input(1)) rotary.positions.push_back(static_cast<std::int64_t>(p));
    rotary.cos = recorded.input_tensor(2);
    rotary.sin = recorded.input_tensor(3);
    rotary.layout = c.layout;
    rotary.section[0] = 2;
    rotary.section[1] = rotary.section[2] = 1;
    for (const Level level : supported_levels()) {
      EXPECT_TRUE(all_within(rotary.run(level, serial), recorded.output("y"),
                             [](std::int64_t) { return rotary_tolerance(DType::f32); }))
          << c.name << " " << level_name(level);
    }
  }
}

TEST(Mrope, TheFirstPositionOutsideTheTableIsFound) {
  const std::vector<std::int64_t> positions{0, 5, 9, 10, -1};
  EXPECT_EQ(find_invalid_position(positions, 10), 3);
  EXPECT_EQ(find_invalid_position(std::span(positions).first(3), 10), -1);
  EXPECT_EQ(find_invalid_position(std::span(positions).last(1), 10), 0);
  EXPECT_EQ(find_invalid_position({}, 0), -1);
}

TEST(RowKernels, NoRowsAreLegal) {
  SerialExecutor serial;
  for (const Level level : supported_levels()) {
    Norm norm(DType::f32, 0, 8);
    EXPECT_TRUE(norm.run(level, serial).guards_intact());
    Gate gate(DType::f32, 0, 4);
    gate.run(level, serial);
    EXPECT_TRUE(gate.decay.guards_intact());
    Rotary rotary(DType::f32, {.tokens = 0, .heads = 2, .head_dim = 8, .rotary_dim = 8, .table_rows = 8});
    EXPECT_TRUE(rotary.run(level, serial).guards_intact());
  }
}

}  // namespace
}  // namespace sluice

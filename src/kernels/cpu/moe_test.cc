#include "kernels/cpu/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/float16.h"
#include "kernels/cpu/linear_roundings.h"

namespace sluice {
namespace {

// Values that every format holds.
std::vector<float> random_values(std::size_t count, unsigned seed, float scale) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> integer(-127, 127);
  std::vector<float> values(count);
  for (float& v : values) v = scale * static_cast<float>(integer(random)) / 64.f;
  return values;
}

// Stored at an odd address.
struct Stored {
  std::vector<std::byte> bytes;
  const std::byte* data() const { return bytes.data() + 1; }
};

Stored store(const std::vector<float>& values, WeightFormat format) {
  const std::size_t size = weight_element_bytes(format);
  Stored stored{std::vector<std::byte>(values.size() * size + 1)};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const f16 half = to_f16(values[i]);
    const bf16 brain = to_bf16(values[i]);
    std::byte* at = stored.bytes.data() + 1 + i * size;
    switch (format) {
      case WeightFormat::f32:
        std::memcpy(at, &values[i], 4);
        break;
      case WeightFormat::f16:
        std::memcpy(at, &half, 2);
        break;
      case WeightFormat::bf16:
        std::memcpy(at, &brain, 2);
        break;
    }
  }
  return stored;
}

struct Model {
  MoeShape shape;
  std::vector<float> gate_up, down, x, logits;
};

Model make_model(const MoeShape& s, unsigned seed) {
  const auto count = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  return {s, random_values(count(s.experts * 2 * s.intermediate * s.hidden), seed, 0.125f),
          random_values(count(s.experts * s.hidden * s.intermediate), seed + 1, 0.25f),
          random_values(count(s.tokens * s.hidden), seed + 2, 0.5f),
          random_values(count(s.tokens * s.experts), seed + 3, 1.f)};
}

struct Options {
  WeightFormat format = WeightFormat::bf16;
  MoeActivation activation = MoeActivation::silu;
  bool normalize = true;
};

std::vector<float> run(Level level, const Model& m, const Options& o, Executor& executor) {
  const Stored gate_up = store(m.gate_up, o.format);
  const Stored down = store(m.down, o.format);
  std::vector<float> y(static_cast<std::size_t>(m.shape.tokens * m.shape.hidden), -7.f);
  const GateUp halves = split_gate_up(gate_up.data(), o.format, m.shape);
  MoeArgs args;
  args.shape = m.shape;
  args.x = m.x.data();
  args.router_logits = m.logits.data();
  args.gate = halves.gate;
  args.up = halves.up;
  args.down = dense_experts(down.data(), o.format, m.shape.hidden, m.shape.intermediate);
  args.activation = o.activation;
  args.normalize = o.normalize;
  args.y = y.data();
  std::vector<std::byte> scratch(moe_scratch_bytes(level, args) + 1);
  moe(level, args, std::span(scratch).subspan(1), executor);
  return y;
}

// The model with only some of its tokens, in the order given.
Model with_tokens(const Model& m, const std::vector<std::int64_t>& tokens) {
  Model some = m;
  some.shape.tokens = static_cast<std::int64_t>(tokens.size());
  some.x.clear();
  some.logits.clear();
  for (const std::int64_t t : tokens) {
    some.x.insert(some.x.end(), m.x.begin() + t * m.shape.hidden, m.x.begin() + (t + 1) * m.shape.hidden);
    some.logits.insert(some.logits.end(), m.logits.begin() + t * m.shape.experts,
                       m.logits.begin() + (t + 1) * m.shape.experts);
  }
  return some;
}

std::vector<double> softmax(const float* logits, std::int64_t count) {
  std::vector<double> p(logits, logits + count);
  const double highest = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& v : p) sum += v = std::exp(v - highest);
  for (double& v : p) v /= sum;
  return p;
}

double activate(MoeActivation activation, double x) {
  if (activation == MoeActivation::silu) return x / (1 + std::exp(-x));
  return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

// A token's output in f64, written apart from the kernels, and how far f32 may be from it: with g = ops * 2^-24 for a
// dot product of `ops` roundings, |d gate| <= g sum|x w|, |d h| <= 1.13 |up| |d gate| + |act| |d up| + 8 ulp |h| (1.13
// bounds both activations' slope), and the down product carries |d h| through and adds its own g.
struct Expected {
  std::vector<double> y, bound;
};

struct Dot {
  double value = 0, magnitude = 0;
};

Dot dot(const float* x, const float* w, std::int64_t count) {
  Dot d;
  for (std::int64_t i = 0; i < count; ++i) {
    const double product = static_cast<double>(x[i]) * static_cast<double>(w[i]);
    d.value += product;
    d.magnitude += std::fabs(product);
  }
  return d;
}

struct Chosen {
  std::int64_t token, expert;
  double weight;
};

void add_expert(Level level, const Model& m, const Options& o, const Chosen& c, Expected& e) {
  const MoeShape& s = m.shape;
  const double ulp = 0x1p-24;
  const auto ops = [&](std::int64_t n) { return 1 + linear_roundings(level, o.format, n); };
  std::vector<double> hidden, error;
  const float* x = m.x.data() + c.token * s.hidden;
  for (std::int64_t i = 0; i < s.intermediate; ++i) {
    const float* gate = m.gate_up.data() + (c.expert * 2 * s.intermediate + i) * s.hidden;
    const Dot g = dot(x, gate, s.hidden);
    const Dot u = dot(x, gate + s.intermediate * s.hidden, s.hidden);
    const double open = activate(o.activation, g.value);
    const double eps = ops(s.hidden) * ulp;
    hidden.push_back(open * u.value);
    error.push_back(1.13 * std::fabs(u.value) * eps * g.magnitude + std::fabs(open) * eps * u.magnitude +
                    16 * ulp * std::fabs(hidden.back()));
  }
  for (std::int64_t h = 0; h < s.hidden; ++h) {
    double value = 0, bound = 0;
    for (std::int64_t i = 0; i < s.intermediate; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const auto down =
          static_cast<double>(m.down[static_cast<std::size_t>((c.expert * s.hidden + h) * s.intermediate + i)]);
      value += hidden[at] * down;
      bound += std::fabs(down) *
               (error[at] + (ops(s.intermediate) + 2 * static_cast<double>(s.experts)) * ulp * std::fabs(hidden[at]));
    }
    e.y[static_cast<std::size_t>(h)] += c.weight * value;
    e.bound[static_cast<std::size_t>(h)] += c.weight * bound;
  }
}

Expected expect(Level level, const Model& m, const Options& o, std::int64_t token) {
  const MoeShape& s = m.shape;
  const auto p = softmax(m.logits.data() + token * s.experts, s.experts);
  std::vector<std::int64_t> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return p[static_cast<std::size_t>(a)] > p[static_cast<std::size_t>(b)];
  });
  double total = 0;
  for (std::int64_t r = 0; r < s.k; ++r) total += p[static_cast<std::size_t>(order[static_cast<std::size_t>(r)])];
  Expected e{std::vector<double>(static_cast<std::size_t>(s.hidden)),
             std::vector<double>(static_cast<std::size_t>(s.hidden))};
  for (std::int64_t r = 0; r < s.k; ++r) {
    const std::int64_t expert = order[static_cast<std::size_t>(r)];
    const double weight = p[static_cast<std::size_t>(expert)] / (o.normalize ? total : 1);
    add_expert(level, m, o, {token, expert, weight}, e);
  }
  return e;
}

TEST(Moe, EveryLevelFormatAndOptionMatchesTheDefinition) {
  SerialExecutor serial;
  const MoeShape shapes[] = {{1, 8, 4, 4, 2},     {5, 33, 7, 6, 3},    {40, 48, 24, 8, 2},
                             {130, 20, 17, 3, 3}, {3, 1030, 70, 5, 1}, {90, 96, 64, 4, 2}};
  for (const MoeShape& shape : shapes) {
    const Model m = make_model(shape, 1);
    for (const WeightFormat format : {WeightFormat::f32, WeightFormat::f16, WeightFormat::bf16}) {
      for (const Options& o :
           {Options{format, MoeActivation::silu, true}, Options{format, MoeActivation::gelu_tanh, false}}) {
        for (const Level level : supported_levels()) {
          const auto y = run(level, m, o, serial);
          for (std::int64_t t = 0; t < shape.tokens; ++t) {
            const Expected e = expect(level, m, o, t);
            for (std::int64_t h = 0; h < shape.hidden; ++h) {
              const auto at = static_cast<std::size_t>(h);
              ASSERT_NEAR(y[static_cast<std::size_t>(t * shape.hidden + h)], e.y[at], e.bound[at])
                  << level_name(level) << " tokens " << shape.tokens << ": token " << t << " element " << h;
            }
          }
        }
      }
    }
  }
}

TEST(Moe, ATokensBitsDoNotDependOnItsCompany) {
  SerialExecutor serial;
  const Model m = make_model({200, 64, 40, 5, 2}, 10);
  std::mt19937 random(3);
  for (const Level level : supported_levels()) {
    const auto together = run(level, m, {}, serial);
    for (int round = 0; round < 6; ++round) {
      std::vector<std::int64_t> tokens(200);
      std::iota(tokens.begin(), tokens.end(), 0);
      std::shuffle(tokens.begin(), tokens.end(), random);
      tokens.resize(static_cast<std::size_t>(1) << round);
      const auto y = run(level, with_tokens(m, tokens), {}, serial);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        ASSERT_EQ(std::memcmp(y.data() + i * 64, together.data() + tokens[i] * 64, 64 * sizeof(float)), 0)
            << level_name(level) << " token " << tokens[i] << " among " << tokens.size();
      }
    }
  }
}

TEST(Moe, ThreadsDoNotChangeABit) {
  SerialExecutor serial;
  ThreadPool two(2);
  ThreadPool three(3);
  const Model m = make_model({57, 70, 90, 6, 3}, 20);
  for (const Level level : supported_levels()) {
    const auto alone = run(level, m, {}, serial);
    EXPECT_EQ(alone, run(level, m, {}, two));
    EXPECT_EQ(alone, run(level, m, {}, three));
  }
}

TEST(Moe, TiesGoToTheLowerExpert) {
  SerialExecutor serial;
  Model m = make_model({2, 16, 8, 5, 2}, 30);
  m.logits = {1, 2, 2, 2, 0, 3, 3, 3, 3, 3};  // ranks: 1 2, and 0 1
  Model apart = m;
  apart.logits = {1, 4, 4, -9, 0, 3, 3, -9, -9, -9};  // the same choices, without ties
  for (const Level level : supported_levels()) EXPECT_EQ(run(level, m, {}, serial), run(level, apart, {}, serial));
}

TEST(Moe, SeparateGateAndUpGiveTheSameBitsAsFused) {
  SerialExecutor serial;
  const Model m = make_model({9, 24, 10, 4, 2}, 40);
  const std::int64_t half = m.shape.intermediate * m.shape.hidden;
  std::vector<float> gate, up;
  for (std::int64_t e = 0; e < m.shape.experts; ++e) {
    const auto at = m.gate_up.begin() + e * 2 * half;
    gate.insert(gate.end(), at, at + half);
    up.insert(up.end(), at + half, at + 2 * half);
  }
  const auto separate = [&](Level level, WeightFormat gate_format, WeightFormat up_format) {
    const Stored g = store(gate, gate_format), u = store(up, up_format), d = store(m.down, WeightFormat::bf16);
    std::vector<float> y(static_cast<std::size_t>(m.shape.tokens * m.shape.hidden));
    MoeArgs args;
    args.shape = m.shape;
    args.x = m.x.data();
    args.router_logits = m.logits.data();
    args.gate = dense_experts(g.data(), gate_format, m.shape.intermediate, m.shape.hidden);
    args.up = dense_experts(u.data(), up_format, m.shape.intermediate, m.shape.hidden);
    args.down = dense_experts(d.data(), WeightFormat::bf16, m.shape.hidden, m.shape.intermediate);
    args.y = y.data();
    std::vector<std::byte> scratch(moe_scratch_bytes(level, args));
    moe(level, args, scratch, serial);
    return y;
  };
  for (const Level level : supported_levels()) {
    const std::vector<float> fused = run(level, m, {}, serial);
    EXPECT_EQ(separate(level, WeightFormat::bf16, WeightFormat::bf16), fused) << level_name(level);
    const std::vector<float> mixed = separate(level, WeightFormat::f16, WeightFormat::bf16);
    const std::vector<float> mixed_too = separate(level, WeightFormat::bf16, WeightFormat::f16);
    if (level != Level::amx) {
      EXPECT_EQ(mixed, fused) << level_name(level);
      EXPECT_EQ(mixed_too, fused) << level_name(level);
      continue;
    }
    // Tiles sum bf16 in an order of their own: rounding alone may tell the formats apart.
    for (std::size_t i = 0; i < mixed.size(); ++i) {
      const Expected e = expect(level, m, {}, static_cast<std::int64_t>(i) / m.shape.hidden);
      const std::size_t h = i % static_cast<std::size_t>(m.shape.hidden);
      EXPECT_NEAR(mixed[i], e.y[h], e.bound[h]) << i;
      EXPECT_NEAR(mixed_too[i], e.y[h], e.bound[h]) << i;
    }
  }
}

TEST(Moe, LargeBatchesAreWorkedOnInPiecesWithoutChangingABit) {
  SerialExecutor serial;
  // 256 x 2050 floats a token make a piece as small as it gets, 64 tokens: 70 take two, in the scratch of 64.
  const Model m = make_model({70, 2048, 1, 256, 256}, 50);
  const Level level = best_level();
  MoeArgs all, piece;
  all.shape = m.shape;
  piece.shape = with_tokens(m, std::vector<std::int64_t>(64)).shape;
  EXPECT_EQ(moe_scratch_bytes(level, all), moe_scratch_bytes(level, piece));
  const auto together = run(level, m, {}, serial);
  for (const std::int64_t token : {0, 63, 64, 69}) {
    const auto alone = run(level, with_tokens(m, {token}), {}, serial);
    EXPECT_EQ(std::memcmp(together.data() + token * 2048, alone.data(), 2048 * sizeof(float)), 0) << "token " << token;
  }
}

TEST(Moe, NoTokensAreLegalAndNanLogitsSpoilTheirTokenAlone) {
  SerialExecutor serial;
  Model m = make_model({4, 16, 8, 5, 2}, 60);
  for (const Level level : supported_levels()) {
    EXPECT_TRUE(run(level, with_tokens(m, {}), {}, serial).empty());
    const auto good = run(level, m, {}, serial);
    Model bad = m;
    bad.logits[7] = std::numeric_limits<float>::quiet_NaN();
    const auto y = run(level, bad, {}, serial);
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (i / 16 == 1) {
        EXPECT_TRUE(std::isnan(y[i]));
      } else {
        EXPECT_EQ(y[i], good[i]);
      }
    }
  }
}

}  // namespace
}  // namespace sluice

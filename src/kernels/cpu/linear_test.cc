#include "kernels/cpu/linear.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/float16.h"
#include "kernels/cpu/linear_roundings.h"

namespace sluice {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::f32, WeightFormat::f16, WeightFormat::bf16};

const char* name_of(WeightFormat format) {
  return format == WeightFormat::f32 ? "f32" : format == WeightFormat::f16 ? "f16" : "bf16";
}

// Values that f16 and bf16 both hold exactly.
std::vector<float> random_values(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = to_f32(to_bf16(std::clamp(normal(random), -4.f, 4.f)));
  for (float& v : values) v = std::fabs(v) < 0x1p-6f ? 0x1p-6f : v;
  return values;
}

// Activations, which are of full precision.
std::vector<float> random_activations(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

void store(std::byte* to, WeightFormat format, float value) {
  const f16 half = to_f16(value);
  const bf16 brain = to_bf16(value);
  switch (format) {
    case WeightFormat::f32:
      std::memcpy(to, &value, 4);
      break;
    case WeightFormat::f16:
      std::memcpy(to, &half, 2);
      break;
    case WeightFormat::bf16:
      std::memcpy(to, &brain, 2);
      break;
  }
}

// A weight at an odd address.
class Weight {
 public:
  Weight(const std::vector<float>& values, WeightFormat format, std::int64_t rows, std::int64_t cols) {
    const std::size_t size = weight_element_bytes(format);
    bytes_.resize(values.size() * size + 65);
    const std::size_t offset = 65 - reinterpret_cast<std::uintptr_t>(bytes_.data()) % 64;
    for (std::size_t i = 0; i < values.size(); ++i) store(bytes_.data() + offset + i * size, format, values[i]);
    view_ = {bytes_.data() + offset, format, rows, cols};
  }
  const WeightView& view() const { return view_; }

 private:
  std::vector<std::byte> bytes_;
  WeightView view_;
};

struct Problem {
  std::int64_t rows, in, out;
};

// In scratch at an odd address.
void multiply(Level level, const LinearArgs& args, Executor& executor) {
  std::vector<std::byte> scratch(linear_scratch_bytes(level, args) + 1);
  linear(level, args, std::span(scratch).subspan(1), executor);
}

std::vector<float> run(Level level, const Problem& p, const std::vector<float>& x, const WeightView& weight,
                       const float* bias, Executor& executor) {
  std::vector<float> y(static_cast<std::size_t>(p.rows * p.out), -7.f);
  multiply(level, {p.rows, x.data(), p.in, weight, bias, y.data(), p.out}, executor);
  return y;
}

bool same_bits(const float* a, const float* b, std::int64_t count) {
  return std::memcmp(a, b, static_cast<std::size_t>(count) * sizeof(float)) == 0;
}

// The sum of magnitudes of one output.
double magnitude_of(const Problem& p, const float* x, const std::vector<float>& w, std::int64_t n, float bias) {
  double magnitude = std::fabs(static_cast<double>(bias));
  for (std::int64_t k = 0; k < p.in; ++k) {
    magnitude += std::fabs(static_cast<double>(x[k]) * static_cast<double>(w[static_cast<std::size_t>(n * p.in + k)]));
  }
  return magnitude;
}

struct Operands {
  const Problem& p;
  const std::vector<float>& x;
  const std::vector<float>& w;
  const float* bias;
};

void expect_close(const Operands& o, double roundings, const std::vector<float>& expected,
                  const std::vector<float>& y) {
  const Problem& p = o.p;
  for (std::int64_t m = 0; m < p.rows; ++m) {
    for (std::int64_t n = 0; n < p.out; ++n) {
      const auto i = static_cast<std::size_t>(m * p.out + n);
      const double bound =
          roundings * 0x1p-24 * magnitude_of(p, o.x.data() + m * p.in, o.w, n, o.bias ? o.bias[n] : 0.f);
      ASSERT_NEAR(y[i], expected[i], bound) << "row " << m << " output " << n;
    }
  }
}

TEST(Linear, EveryLevelAndFormatMatchesTheSpecificationAtOddShapes) {
  const Problem problems[] = {{1, 1, 1},     {2, 7, 3},      {1, 48, 8},     {3, 80, 17},     {4, 193, 9},
                              {5, 1024, 12}, {6, 1025, 20},  {7, 31, 40},    {12, 1030, 5},   {13, 2049, 8},
                              {14, 64, 64},  {16, 33, 65},   {65, 97, 24},   {70, 1100, 71},  {97, 130, 66},
                              {1, 193, 130}, {1, 700, 66},   {9, 700, 66},   {17, 1024, 50},  {1, 512, 300},
                              {2, 1024, 97}, {16, 2048, 70}, {31, 1056, 64}, {33, 3000, 130}, {200, 64, 99}};
  SerialExecutor serial;
  for (const Problem& p : problems) {
    const auto x = random_activations(static_cast<std::size_t>(p.rows * p.in), 1);
    const auto w = random_values(static_cast<std::size_t>(p.out * p.in), 2);
    const auto bias = random_values(static_cast<std::size_t>(p.out), 3);
    for (const WeightFormat format : kFormats) {
      const Weight weight(w, format, p.out, p.in);
      for (const float* b : {static_cast<const float*>(nullptr), bias.data()}) {
        const auto expected = run(Level::scalar, p, x, weight.view(), b, serial);
        for (const Level level : supported_levels()) {
          SCOPED_TRACE(std::string(level_name(level)) + " " + name_of(format) + " M" + std::to_string(p.rows) + " K" +
                       std::to_string(p.in) + " N" + std::to_string(p.out));
          expect_close({p, x, w, b}, linear_roundings(level, format, p.in), expected,
                       run(level, p, x, weight.view(), b, serial));
        }
      }
    }
  }
}

TEST(Linear, ARowHasTheSameBitsWhateverSharesTheBatch) {
  SerialExecutor serial;
  for (const auto& [in, out] : {std::pair{1, 29}, {7, 70}, {48, 29}, {193, 80}, {1024, 29}, {1024, 150}, {2100, 77}}) {
    const Problem all{210, in, out};
    const auto x = random_activations(static_cast<std::size_t>(all.rows * in), 4);
    const Weight weight(random_values(static_cast<std::size_t>(all.out * in), 5), WeightFormat::bf16, all.out, in);
    for (const Level level : supported_levels()) {
      const auto together = run(level, all, x, weight.view(), nullptr, serial);
      std::int64_t first = 0;
      for (std::int64_t rows = 1; rows <= 70; ++rows) {
        first = (first + 17) % (all.rows - rows);
        const std::vector<float> some(x.begin() + first * in, x.begin() + (first + rows) * in);
        const auto y = run(level, {rows, in, all.out}, some, weight.view(), nullptr, serial);
        ASSERT_TRUE(same_bits(y.data(), together.data() + first * all.out, rows * all.out))
            << level_name(level) << " K " << in << ": rows " << first << " .. " << first + rows;
      }
    }
  }
}

TEST(Linear, AnOutputHasTheSameBitsWhateverItsNeighbours) {
  SerialExecutor serial;
  for (const auto& [rows, in] :
       {std::pair<std::int64_t, std::int64_t>{1, 1090}, {2, 700}, {5, 193}, {30, 1090}, {1, 193}}) {
    const std::int64_t outs = 80;
    const auto x = random_activations(static_cast<std::size_t>(rows * in), 7);
    const Weight weight(random_values(static_cast<std::size_t>(outs * in), 6), WeightFormat::f16, outs, in);
    for (const Level level : supported_levels()) {
      const auto whole = run(level, {rows, in, outs}, x, weight.view(), nullptr, serial);
      for (std::int64_t n = 0; n < outs; n += 7) {
        const auto one = run(level, {rows, in, 1}, x, weight_rows(weight.view(), n, 1), nullptr, serial);
        for (std::int64_t m = 0; m < rows; ++m) {
          ASSERT_TRUE(same_bits(&one[static_cast<std::size_t>(m)], &whole[static_cast<std::size_t>(m * outs + n)], 1))
              << level_name(level) << " row " << m << " output " << n << " K " << in;
        }
      }
    }
  }
}

TEST(Linear, AnOutputHasTheSameBitsWhateverItsNeighboursInTiles) {
  SerialExecutor serial;
  for (const auto& [rows, in] :
       {std::pair<std::int64_t, std::int64_t>{1, 1024}, {2, 700}, {16, 192}, {33, 2080}, {1, 193}}) {
    const std::int64_t outs = 205;
    const auto x = random_activations(static_cast<std::size_t>(rows * in), 7);
    const Weight weight(random_values(static_cast<std::size_t>(outs * in), 6), WeightFormat::bf16, outs, in);
    for (const Level level : supported_levels()) {
      const auto whole = run(level, {rows, in, outs}, x, weight.view(), nullptr, serial);
      for (const auto& [n, count] : {std::pair<std::int64_t, std::int64_t>{0, 64}, {5, 64}, {70, 135}, {100, 99}}) {
        const auto some = run(level, {rows, in, count}, x, weight_rows(weight.view(), n, count), nullptr, serial);
        for (std::int64_t m = 0; m < rows; ++m) {
          ASSERT_TRUE(same_bits(some.data() + m * count, whole.data() + m * outs + n, count))
              << level_name(level) << " row " << m << " outputs from " << n << " K " << in;
        }
      }
    }
  }
}

TEST(Linear, ThreadsDoNotChangeABit) {
  SerialExecutor serial;
  ThreadPool two(2);
  ThreadPool three(3);
  for (const Problem& p : {Problem{1, 512, 300}, Problem{5, 1030, 130}, Problem{200, 320, 150}}) {
    const auto x = random_activations(static_cast<std::size_t>(p.rows * p.in), 8);
    const Weight weight(random_values(static_cast<std::size_t>(p.out * p.in), 9), WeightFormat::bf16, p.out, p.in);
    for (const Level level : supported_levels()) {
      const auto alone = run(level, p, x, weight.view(), nullptr, serial);
      EXPECT_TRUE(same_bits(alone.data(), run(level, p, x, weight.view(), nullptr, two).data(), p.rows * p.out));
      EXPECT_TRUE(same_bits(alone.data(), run(level, p, x, weight.view(), nullptr, three).data(), p.rows * p.out));
    }
  }
}

TEST(Linear, TheVectorLevelsGiveEqualBits) {
  if (vector_levels().size() < 2) GTEST_SKIP() << "only one vector level runs here";
  SerialExecutor serial;
  for (const Problem& p : {Problem{1, 1000, 37}, Problem{3, 1541, 12}, Problem{9, 77, 50}, Problem{50, 1100, 33}}) {
    const auto x = random_activations(static_cast<std::size_t>(p.rows * p.in), 16);
    for (const WeightFormat format : kFormats) {
      const Weight weight(random_values(static_cast<std::size_t>(p.out * p.in), 17), format, p.out, p.in);
      const auto narrow = run(Level::avx2, p, x, weight.view(), nullptr, serial);
      const auto wide = run(Level::avx512, p, x, weight.view(), nullptr, serial);
      EXPECT_TRUE(same_bits(narrow.data(), wide.data(), p.rows * p.out)) << name_of(format) << " rows " << p.rows;
    }
  }
}

TEST(Linear, SubnormalHalvesCountInFull) {
  SerialExecutor serial;
  const std::vector<float> w = {0x1p-24f, -0x1.8p-23f, 0x1.ff8p-15f, 0x1p-14f, 0.f,
                                0x1p-20f, -0x1p-24f,   0x1p-16f,     0x1p-17f};
  const Weight weight(w, WeightFormat::f16, 1, 9);
  double sum = 0;
  for (const float v : w) sum += static_cast<double>(v) * 0x1p20;
  for (const Level level : supported_levels()) {
    for (const std::int64_t rows : {1, 30}) {
      const std::vector<float> x(static_cast<std::size_t>(rows * 9), 0x1p20f);
      const auto y = run(level, {rows, 9, 1}, x, weight.view(), nullptr, serial);
      EXPECT_EQ(y, std::vector<float>(static_cast<std::size_t>(rows), static_cast<float>(sum))) << level_name(level);
    }
  }
}

TEST(Linear, EqualValuesGiveEqualBitsInEveryFormat) {
  SerialExecutor serial;
  for (const std::int64_t rows : {1, 4, 40}) {
    const Problem p{rows, 1300, 21};
    const auto x = random_activations(static_cast<std::size_t>(p.rows * p.in), 10);
    const auto w = random_values(static_cast<std::size_t>(p.out * p.in), 11);
    const Weight wide(w, WeightFormat::f32, p.out, p.in);
    for (const Level level : supported_levels()) {
      const auto expected = run(level, p, x, wide.view(), nullptr, serial);
      for (const WeightFormat format : kFormats) {
        if (level == Level::amx && format == WeightFormat::bf16) continue;  // summed in tiles, in an order of their own
        const Weight weight(w, format, p.out, p.in);
        EXPECT_TRUE(same_bits(expected.data(), run(level, p, x, weight.view(), nullptr, serial).data(), p.rows * p.out))
            << level_name(level) << " " << name_of(format) << " rows " << rows;
      }
    }
  }
}

TEST(Linear, StridesLeaveWhatLiesBetweenAlone) {
  SerialExecutor serial;
  const Problem p{20, 50, 75};
  const auto x = random_activations(static_cast<std::size_t>(p.rows * 60), 12);
  const Weight weight(random_values(static_cast<std::size_t>(p.out * p.in), 13), WeightFormat::bf16, p.out, p.in);
  std::vector<float> dense;
  for (std::int64_t m = 0; m < p.rows; ++m) dense.insert(dense.end(), x.begin() + m * 60, x.begin() + m * 60 + p.in);
  for (const Level level : supported_levels()) {
    const auto expected = run(level, p, dense, weight.view(), nullptr, serial);
    std::vector<float> y(static_cast<std::size_t>(p.rows * 80), -7.f);
    multiply(level, {p.rows, x.data(), 60, weight.view(), nullptr, y.data(), 80}, serial);
    for (std::int64_t m = 0; m < p.rows; ++m) {
      EXPECT_TRUE(same_bits(y.data() + m * 80, expected.data() + m * p.out, p.out));
      for (std::int64_t n = p.out; n < 80; ++n) EXPECT_EQ(y[static_cast<std::size_t>(m * 80 + n)], -7.f);
    }
  }
}

TEST(Linear, EmptyExtentsAreLegal) {
  SerialExecutor serial;
  const float bias[] = {3.f, -4.f};
  for (const Level level : supported_levels()) {
    EXPECT_EQ(run(level, {2, 0, 2}, {}, {nullptr, WeightFormat::bf16, 2, 0}, bias, serial),
              std::vector<float>({3, -4, 3, -4}));
    EXPECT_EQ(run(level, {2, 0, 2}, {}, {nullptr, WeightFormat::bf16, 2, 0}, nullptr, serial), std::vector<float>(4));
    EXPECT_TRUE(run(level, {0, 3, 2}, {}, {nullptr, WeightFormat::bf16, 2, 3}, bias, serial).empty());
    EXPECT_TRUE(
        run(level, {2, 3, 0}, std::vector<float>(6), {nullptr, WeightFormat::bf16, 0, 3}, nullptr, serial).empty());
  }
}

TEST(Linear, AnInfiniteActivationSpoilsItsOwnRowAlone) {
  SerialExecutor serial;
  for (const std::int64_t bad : {0, 4, 29}) {
    const Problem p{30, 100, bad == 4 ? 16 : 80};
    auto x = random_activations(static_cast<std::size_t>(p.rows * p.in), 14);
    const Weight weight(random_values(static_cast<std::size_t>(p.out * p.in), 15), WeightFormat::bf16, p.out, p.in);
    for (const Level level : supported_levels()) {
      const auto good = run(level, p, x, weight.view(), nullptr, serial);
      auto spoiled = x;
      spoiled[static_cast<std::size_t>(bad * p.in + 99)] = std::numeric_limits<float>::infinity();
      const auto y = run(level, p, spoiled, weight.view(), nullptr, serial);
      for (std::int64_t m = 0; m < p.rows; ++m) {
        const float* row = y.data() + m * p.out;
        if (m == bad) {
          EXPECT_TRUE(std::all_of(row, row + p.out, [](float v) { return !std::isfinite(v); }));
        } else {
          EXPECT_TRUE(same_bits(row, good.data() + m * p.out, p.out)) << level_name(level) << " row " << m;
        }
      }
    }
  }
}

// Whether a sum is infinite, and which way, or no number, does not depend on how x is cut for tiles.
TEST(Linear, InfinitiesAndNanComeOutAsInF32) {
  SerialExecutor serial;
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const Problem p{5, 1100, 70};
  const auto x = random_activations(static_cast<std::size_t>(p.rows * p.in), 20);
  const auto w = random_values(static_cast<std::size_t>(p.out * p.in), 21);
  const std::vector<float> bias(static_cast<std::size_t>(p.out), 1.f);
  for (const auto& [in_x, in_w] : {std::pair{kInfinity, 1.f},
                                   {-kInfinity, -1.f},
                                   {kInfinity, 0.f},
                                   {kNan, 1.f},
                                   {1.f, kInfinity},
                                   {0x1.000002p0f, -kInfinity},
                                   {0.f, kInfinity},
                                   {0x1.fffffep127f, 2.f},
                                   {0x1.fffffep127f, -0x1p3f},
                                   {1.f, kNan}}) {
    for (const std::int64_t k : {0, 31, 1099}) {
      auto some_x = x, some_w = w;
      some_x[static_cast<std::size_t>(2 * p.in + k)] = in_x;
      some_w[static_cast<std::size_t>(40 * p.in + k)] = in_w;
      const Weight weight(some_w, WeightFormat::bf16, p.out, p.in);
      const auto expected = run(Level::scalar, p, some_x, weight.view(), bias.data(), serial);
      for (const Level level : supported_levels()) {
        const auto y = run(level, p, some_x, weight.view(), bias.data(), serial);
        for (std::size_t i = 0; i < y.size(); ++i) {
          ASSERT_EQ(std::isnan(y[i]), std::isnan(expected[i])) << level_name(level) << " " << in_x << " x " << in_w;
          if (std::isinf(expected[i])) {
            ASSERT_EQ(y[i], expected[i]) << level_name(level) << " " << in_x << " x " << in_w;
          }
        }
      }
    }
  }
}

// Tiles take subnormal operands and sums as zeros: the absolute error stays below what any model can see.
TEST(Linear, SubnormalsAreLostInTilesAlone) {
  SerialExecutor serial;
  const Problem p{3, 64, 64};
  for (const float tiny : {0x1p-130f, 0x1.8p-120f, 0x1.234568p-110f}) {
    const std::vector<float> x(static_cast<std::size_t>(p.rows * p.in), tiny);
    const Weight weight(std::vector<float>(static_cast<std::size_t>(p.out * p.in), 1.f), WeightFormat::bf16, p.out,
                        p.in);
    for (const Level level : supported_levels()) {
      const auto y = run(level, p, x, weight.view(), nullptr, serial);
      const float lost = level == Level::amx ? static_cast<float>(p.in) * 0x1p-126f : 0.f;
      for (const float v : y) ASSERT_NEAR(v, tiny * static_cast<float>(p.in), lost) << level_name(level);
    }
  }
}

TEST(Linear, ReadsNothingBeyondTheWeightsLastByte) {
  SerialExecutor serial;
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (const auto& [in, out] : {std::pair<std::int64_t, std::int64_t>{5, 9}, {33, 9}, {100, 9}, {33, 70}, {64, 128}}) {
    for (const WeightFormat format : kFormats) {
      const std::size_t bytes = static_cast<std::size_t>(in * out) * weight_element_bytes(format);
      const std::size_t room = (bytes + page - 1) / page * page;
      auto* map = static_cast<std::byte*>(
          mmap(nullptr, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      ASSERT_NE(map, MAP_FAILED);
      ASSERT_EQ(mprotect(map + room, page, PROT_NONE), 0);
      const WeightView weight{map + room - bytes, format, out, in};
      for (std::int64_t i = 0; i < in * out; ++i) {
        store(map + room - bytes + static_cast<std::size_t>(i) * weight_element_bytes(format), format, 1.f);
      }
      for (const Level level : supported_levels()) {
        for (const std::int64_t rows : {1, 2, 6, 40}) {
          const auto y = run(level, {rows, in, out}, std::vector<float>(static_cast<std::size_t>(rows * in), 1.f),
                             weight, nullptr, serial);
          EXPECT_EQ(y, std::vector<float>(static_cast<std::size_t>(rows * out), static_cast<float>(in)));
        }
      }
      munmap(map, room + page);
    }
  }
}

}  // namespace
}  // namespace sluice

#include "kernels/cpu/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/float16.h"

namespace sluice {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto* first = reinterpret_cast<const std::byte*>(values.data());
  return {first, first + values.size() * sizeof(T)};
}

struct Result {
  std::vector<std::byte> bytes;
  ConvertCounts counts;
};

// Converts from and to odd addresses, and checks that nothing beside the target is written.
Result run(Level level, DType from, DType to, ConvertStep step, const std::vector<std::byte>& source) {
  const std::uint64_t count = source.size() / dtype_bytes(from);
  std::vector<std::byte> moved(source.size() + 1);
  std::copy(source.begin(), source.end(), moved.begin() + 1);
  std::vector<std::byte> target(count * dtype_bytes(to) + 2, std::byte{0xa5});
  Result result;
  result.counts = convert(level, {from, to, step, moved.data() + 1, target.data() + 1, count});
  EXPECT_EQ(target.front(), std::byte{0xa5});
  EXPECT_EQ(target.back(), std::byte{0xa5});
  result.bytes.assign(target.begin() + 1, target.end() - 1);
  return result;
}

std::string describe(Level level, DType from, DType to) {
  return std::string(level_name(level)) + " " + std::string(dtype_name(from)) + " -> " + std::string(dtype_name(to));
}

void expect_same(const Result& expected, const Result& actual) {
  EXPECT_EQ(expected.counts.elements, actual.counts.elements);
  EXPECT_EQ(expected.counts.not_finite, actual.counts.not_finite);
  EXPECT_EQ(expected.counts.overflowed, actual.counts.overflowed);
  EXPECT_EQ(expected.counts.flushed, actual.counts.flushed);
  EXPECT_EQ(expected.counts.subnormal, actual.counts.subnormal);
  ASSERT_EQ(expected.bytes.size(), actual.bytes.size());
  const auto differ = std::mismatch(expected.bytes.begin(), expected.bytes.end(), actual.bytes.begin());
  ASSERT_EQ(differ.first, expected.bytes.end()) << "first at byte " << differ.first - expected.bytes.begin();
}

std::vector<std::uint16_t> all_16_bit_values() {
  std::vector<std::uint16_t> values(65536);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i);
  return values;
}

// Every 16-bit pattern of either format, its neighbours in f32, and the midpoints where a rounding turns.
std::vector<float> hard_values() {
  std::vector<float> values;
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    for (const float v : {to_f32(bf16{bits}), to_f32(f16{bits})}) {
      const std::uint32_t b = std::bit_cast<std::uint32_t>(v);
      for (const std::uint32_t offset : {0u, 1u, 0xffffffffu, 0x1000u, 0xfffu, 0x1001u, 0x8000u, 0x7fffu, 0x8001u}) {
        values.push_back(std::bit_cast<float>(b + offset));
      }
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  return values;
}

TEST(Convert, EverySixteenBitValueConvertsAsTheScalarDoes) {
  const auto source = bytes_of(all_16_bit_values());
  for (const DType from : {DType::f16, DType::bf16}) {
    for (const DType to : kTypes) {
      for (const ConvertStep step : {ConvertStep::none, ConvertStep::plus_one}) {
        const Result expected = run(Level::scalar, from, to, step, source);
        for (const Level level : supported_levels()) {
          SCOPED_TRACE(describe(level, from, to));
          expect_same(expected, run(level, from, to, step, source));
        }
      }
    }
  }
}

TEST(Convert, EveryEdgeOfASingleConvertsAsTheScalarDoes) {
  const auto source = bytes_of(hard_values());
  for (const DType to : kTypes) {
    for (const ConvertStep step : {ConvertStep::none, ConvertStep::plus_one}) {
      const Result expected = run(Level::scalar, DType::f32, to, step, source);
      for (const Level level : supported_levels()) {
        SCOPED_TRACE(describe(level, DType::f32, to));
        expect_same(expected, run(level, DType::f32, to, step, source));
      }
    }
  }
}

TEST(Convert, WideningAndBackIsTheIdentity) {
  const auto source = bytes_of(all_16_bit_values());
  for (const Level level : supported_levels()) {
    for (const DType narrow : {DType::f16, DType::bf16}) {
      const auto wide = run(level, narrow, DType::f32, ConvertStep::none, source);
      const auto back = run(level, DType::f32, narrow, ConvertStep::none, wide.bytes);
      for (std::size_t i = 0; i < 65536; ++i) {
        std::uint16_t bits;
        std::memcpy(&bits, back.bytes.data() + 2 * i, 2);
        const float before = narrow == DType::f16 ? to_f32(f16{static_cast<std::uint16_t>(i)})
                                                  : to_f32(bf16{static_cast<std::uint16_t>(i)});
        const float after = narrow == DType::f16 ? to_f32(f16{bits}) : to_f32(bf16{bits});
        ASSERT_EQ(std::isnan(before), std::isnan(after)) << i;
        if (std::isnan(before)) continue;
        ASSERT_EQ(bits, i);
      }
    }
  }
}

TEST(Convert, CountsWhatAHalfCannotHold) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {0,          -0.f,         1.f,    65504.f, 65519.996f,  // held
                                     65520.f,    -1e5f,        3e38f,                        // overflow
                                     0x1p-25f,   -0x1p-30f,    1e-45f,                       // flushed
                                     0x1.8p-25f, -0x1p-15f,                                  // subnormal
                                     0x1p-14f,   0x1.ffcp-15f, inf,    -inf,    std::nanf("")};
  for (const Level level : supported_levels()) {
    const ConvertCounts c = run(level, DType::f32, DType::f16, ConvertStep::none, bytes_of(values)).counts;
    EXPECT_EQ(c.elements, values.size()) << level_name(level);
    EXPECT_EQ(c.overflowed, 3u) << level_name(level);
    EXPECT_EQ(c.flushed, 3u) << level_name(level);
    EXPECT_EQ(c.subnormal, 2u) << level_name(level);
    EXPECT_EQ(c.not_finite, 3u) << level_name(level);
  }
}

TEST(Convert, PlusOneRoundsOnceFromSingle) {
  const std::vector<std::uint16_t> w = {to_bf16(0.00390625f).bits, to_bf16(-1.f).bits, to_bf16(0.3f).bits};
  for (const Level level : supported_levels()) {
    const auto wide = run(level, DType::bf16, DType::f32, ConvertStep::plus_one, bytes_of(w));
    const auto narrow = run(level, DType::bf16, DType::bf16, ConvertStep::plus_one, bytes_of(w));
    for (std::size_t i = 0; i < w.size(); ++i) {
      float sum;
      std::uint16_t rounded;
      std::memcpy(&sum, wide.bytes.data() + 4 * i, 4);
      std::memcpy(&rounded, narrow.bytes.data() + 2 * i, 2);
      EXPECT_EQ(sum, 1.f + to_f32(bf16{w[i]}));
      EXPECT_EQ(rounded, to_bf16(sum).bits);
    }
  }
}

TEST(Convert, NegExpIsMinusTheExponential) {
  const std::vector<float> a = {0.f, 1.f, -2.5f, 3.25f, 100.f};
  for (const Level level : supported_levels()) {
    const auto result = run(level, DType::f32, DType::f32, ConvertStep::neg_exp, bytes_of(a));
    for (std::size_t i = 0; i < a.size(); ++i) {
      float y;
      std::memcpy(&y, result.bytes.data() + 4 * i, 4);
      EXPECT_EQ(y, static_cast<float>(-std::exp(static_cast<double>(a[i]))));
    }
    EXPECT_EQ(result.counts.overflowed, 1u);  // e^100
  }
}

TEST(Convert, EveryTailLengthIsWhole) {
  for (std::size_t count = 0; count < 70; ++count) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = 0.1f * static_cast<float>(i) - 3.f;
    for (const DType to : kTypes) {
      const Result expected = run(Level::scalar, DType::f32, to, ConvertStep::plus_one, bytes_of(values));
      for (const Level level : supported_levels()) {
        expect_same(expected, run(level, DType::f32, to, ConvertStep::plus_one, bytes_of(values)));
      }
    }
  }
}

}  // namespace
}  // namespace sluice

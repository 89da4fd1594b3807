#include "base/float16.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sluice {
namespace {

TEST(Float16, EveryHalfSurvivesTheWayThroughFloat) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const f16 half{static_cast<std::uint16_t>(bits)};
    const float wide = to_f32(half);
    const auto magnitude = bits & 0x7fffu;
    if (magnitude > 0x7c00u) {
      EXPECT_TRUE(std::isnan(wide)) << bits;
      EXPECT_TRUE(std::isnan(to_f32(to_f16(wide)))) << bits;
    } else {
      EXPECT_EQ(to_f16(wide).bits, bits);
    }
  }
}

// The definition: a half is (1 + m / 1024) * 2^(e - 15), or m * 2^-24 where e is 0.
TEST(Float16, WideningFollowsTheDefinition) {
  for (unsigned bits = 0; bits < 0x7c00; ++bits) {
    const int exponent = static_cast<int>(bits >> 10);
    const double mantissa = bits & 0x3ffu;
    const double expected = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1 + mantissa / 1024, exponent - 15);
    EXPECT_EQ(to_f32(f16{static_cast<std::uint16_t>(bits)}), expected) << bits;
  }
}

template <typename T>
void expect_nearest_even(unsigned last_finite) {
  for (unsigned bits = 0; bits < last_finite; ++bits) {
    const float low = to_f32(T{static_cast<std::uint16_t>(bits)});
    const float high = to_f32(T{static_cast<std::uint16_t>(bits + 1)});
    const float middle = static_cast<float>((static_cast<double>(low) + high) / 2);
    EXPECT_EQ(from_f32<T>(middle).bits, bits + (bits & 1)) << "tie between " << low << " and " << high;
    EXPECT_EQ(from_f32<T>(std::nextafterf(middle, low)).bits, bits);
    EXPECT_EQ(from_f32<T>(std::nextafterf(middle, high)).bits, bits + 1);
    EXPECT_EQ(from_f32<T>(-middle).bits, (bits + (bits & 1)) | 0x8000u);
  }
}

TEST(Float16, NarrowingRoundsToNearestEven) { expect_nearest_even<f16>(0x7bff); }
TEST(Bfloat16, NarrowingRoundsToNearestEven) { expect_nearest_even<bf16>(0x7f7f); }

TEST(Float16, OverflowIsInfinityFrom65520On) {
  EXPECT_EQ(to_f16(65519.996f).bits, 0x7bffu);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7c00u);
  EXPECT_EQ(to_f16(-INFINITY).bits, 0xfc00u);
}

TEST(Bfloat16, NanStaysNanAndInfinityStaysInfinity) {
  EXPECT_TRUE(std::isnan(to_f32(to_bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_EQ(to_bf16(INFINITY).bits, 0x7f80u);
  EXPECT_EQ(to_bf16(3.4e38f).bits, 0x7f80u);
}

}  // namespace
}  // namespace sluice

#include "tests/support/random_node.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/direct_node.h"
#include "tests/support/one_node.h"

namespace sluice::ops {
namespace {

constexpr int kCases = 4000;

bool is_one_line(const std::string& message) { return !message.empty() && message.find('\n') == std::string::npos; }

// The largest magnitude; NaN when a value is not finite.
double magnitude(const TestTensor& tensor) {
  double largest = 0;
  for (const float x : to_floats(tensor)) {
    if (!std::isfinite(x)) return std::nan("");
    largest = std::max(largest, std::abs(static_cast<double>(x)));
  }
  return largest;
}

// Values that are far out or not finite, which only corrupted cases have, lose all digits somewhere: squares overflow f32,
// differences cancel.
bool is_comparable(const NodeCase& node, const Outcome& scalar) {
  for (const auto& input : node.inputs) {
    if (input && is_float_weight(input->dtype) && !(magnitude(*input) < 1e9)) return false;
  }
  return std::ranges::all_of(scalar.outputs, [](const TestTensor& t) { return magnitude(t) < 1e4; });
}

// Against the scalar specification.
::testing::AssertionResult agree(const NodeCase& node, const Outcome& fast, const Outcome& scalar) {
  if (fast.outputs.size() != scalar.outputs.size()) return ::testing::AssertionFailure() << "another number of outputs";
  if (!is_comparable(node, scalar)) return ::testing::AssertionSuccess();
  for (std::size_t i = 0; i < scalar.outputs.size(); ++i) {
    const DType dtype = scalar[i].dtype;
    const double rounding = dtype == DType::f32 ? 1e-5 : dtype == DType::f16 ? 0x1p-10 : 0x1p-7;
    const double scale = 1 + magnitude(scalar[i]);
    auto result = close(fast[i], scalar[i], (1e-4 + rounding) * scale, rounding);
    if (!result) return result << " in output " << i;
  }
  return ::testing::AssertionSuccess();
}

std::string describe(const NodeCase& node, int seed) { return node.op + " of seed " + std::to_string(seed); }

TEST(RandomNodes, RightOnesGiveTheScalarAnswerAtEveryLevel) {
  SerialExecutor serial;
  ThreadPool pool(3);
  for (int seed = 0; seed < kCases; ++seed) {
    SeededChoices choices(static_cast<std::uint64_t>(seed));
    const NodeCase node = random_node(choices);
    const Outcome scalar = run_direct(node, Level::scalar, serial);
    ASSERT_EQ(scalar.error, "") << describe(node, seed);
    for (const Level level : supported_levels()) {
      if (level == Level::scalar) continue;
      const Outcome fast = run_direct(node, level, serial);
      EXPECT_TRUE(agree(node, fast, scalar)) << describe(node, seed) << " at " << level_name(level);
      const Outcome threaded = run_direct(node, level, pool);
      for (std::size_t i = 0; i < fast.outputs.size(); ++i) {
        EXPECT_TRUE(same_bits(threaded[i], fast[i])) << describe(node, seed) << " with 3 threads";
      }
    }
  }
}

TEST(RandomNodes, WrongOnesGiveOneClearLineOrTheScalarAnswer) {
  SerialExecutor serial;
  int refused = 0;
  for (int seed = 0; seed < 4 * kCases; ++seed) {
    SeededChoices choices(static_cast<std::uint64_t>(seed) + 1'000'000);
    NodeCase node = random_node(choices);
    corrupt(node, choices);
    const Outcome scalar = run_direct(node, Level::scalar, serial);
    const Outcome fast = run_direct(node, best_level(), serial);
    ASSERT_EQ(fast.error, scalar.error) << describe(node, seed);
    if (!scalar.error.empty()) {
      ++refused;
      EXPECT_TRUE(is_one_line(scalar.error)) << scalar.error;
    } else {
      EXPECT_TRUE(agree(node, fast, scalar)) << describe(node, seed);
    }
  }
  EXPECT_GT(refused, kCases);      // most corruptions are errors,
  EXPECT_LT(refused, 4 * kCases);  // but not all
}

// The adapters do what was called directly above: the same bits, or the same complaint.
TEST(RandomNodes, TheAdaptersGiveTheSameThroughOnnxRuntime) {
  SerialExecutor serial;
  for (int seed = 0; seed < 300; ++seed) {
    SeededChoices choices(static_cast<std::uint64_t>(seed) + 2'000'000);
    NodeCase node = random_node(choices);
    if (choices.chance(50)) corrupt(node, choices);
    const Outcome direct = run_direct(node, best_level(), serial);
    const Outcome through = run_node(node, best_level());
    if (!direct.error.empty()) {
      EXPECT_NE(through.error, "") << describe(node, seed) << ": " << direct.error;
      continue;
    }
    ASSERT_EQ(through.error, "") << describe(node, seed);
    ASSERT_EQ(through.outputs.size(), direct.outputs.size());
    for (std::size_t i = 0; i < direct.outputs.size(); ++i) {
      EXPECT_TRUE(same_bits(through[i], direct[i])) << describe(node, seed) << " output " << i;
    }
  }
}

}  // namespace
}  // namespace sluice::ops

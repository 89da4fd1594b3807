#include "tests/support/compare.h"

#include <cmath>

namespace sluice::ops {

::testing::AssertionResult close(const TestTensor& a, const TestTensor& b, double absolute, double relative) {
  if (a.shape != b.shape || a.dtype != b.dtype) {
    return ::testing::AssertionFailure() << dtype_name(a.dtype) << to_string(a.shape) << " against "
                                         << dtype_name(b.dtype) << to_string(b.shape);
  }
  const std::vector<float> left = to_floats(a);
  const std::vector<float> right = to_floats(b);
  std::size_t worst = left.size();
  double excess = 0;
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (std::isnan(left[i]) && std::isnan(right[i])) continue;
    const double bound = absolute + relative * std::abs(static_cast<double>(right[i]));
    const double beyond = std::abs(static_cast<double>(left[i]) - right[i]) - bound;
    if (beyond <= 0 || left[i] == right[i]) continue;
    if (worst == left.size() || !(beyond <= excess)) {
      worst = i;
      excess = beyond;
    }
  }
  if (worst == left.size()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "element " << worst << " of " << to_string(a.shape) << ": " << left[worst]
                                       << " against " << right[worst] << ", allowed " << absolute << " + " << relative
                                       << " of the value";
}

::testing::AssertionResult same_bits(const TestTensor& a, const TestTensor& b) {
  if (a.shape != b.shape || a.dtype != b.dtype) {
    return ::testing::AssertionFailure() << dtype_name(a.dtype) << to_string(a.shape) << " against "
                                         << dtype_name(b.dtype) << to_string(b.shape);
  }
  for (std::size_t i = 0; i < a.bytes.size(); ++i) {
    if (a.bytes[i] == b.bytes[i]) continue;
    return ::testing::AssertionFailure() << "element " << i / dtype_bytes(a.dtype) << " of " << to_string(a.shape)
                                         << " differs";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace sluice::ops

// Comparisons of tensors that say where and by how much two of them differ.
#pragma once

#include <gtest/gtest.h>

#include "tests/support/tensors.h"

namespace sluice::ops {

// Elementwise |a - b| <= absolute + relative * |b|, equal shapes and types; the message has the worst element. NaN
// equals NaN.
::testing::AssertionResult close(const TestTensor& a, const TestTensor& b, double absolute, double relative);
::testing::AssertionResult same_bits(const TestTensor& a, const TestTensor& b);

}  // namespace sluice::ops

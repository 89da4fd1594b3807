// What the kernel tests share: tensors of any float type at vector-unaligned addresses, fenced by guard elements, and
// the cases recorded from the released runtime.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/float16.h"
#include "base/json.h"
#include "kernels/cpu/level.h"

namespace sluice::test {

inline constexpr DType kFloatTypes[] = {DType::f32, DType::f16, DType::bf16};

// Half a unit in the last place of 1: the relative error of one rounding to the type.
inline double rounding(DType type) { return type == DType::f32 ? 0x1p-24 : type == DType::f16 ? 0x1p-11 : 0x1p-8; }

// The smallest distance between two values of the type: the absolute error of rounding a tiny value.
inline double smallest_step(DType type) {
  return type == DType::f16 ? 0x1p-24 : type == DType::f32 ? 0x1p-149 : 0x1p-133;
}

// A flat buffer of `type`; data() is aligned to the element but not to a vector. Guard elements stand on both sides.
class TestTensor {
 public:
  TestTensor() = default;
  TestTensor(DType type, std::int64_t count, float fill = 0)
      : type_(type), count_(count), bytes_(static_cast<std::size_t>(count + 2 * kGuard) * dtype_bytes(type)) {
    for (std::int64_t i = -kGuard; i < count + kGuard; ++i) set(i, kGuardValue);
    for (std::int64_t i = 0; i < count; ++i) set(i, fill);
  }
  TestTensor(DType type, const std::vector<float>& values)
      : TestTensor(type, static_cast<std::int64_t>(values.size())) {
    for (std::int64_t i = 0; i < count_; ++i) set(i, values[static_cast<std::size_t>(i)]);
  }
  static TestTensor random(DType type, std::int64_t count, unsigned seed, float spread = 1, float centre = 0) {
    TestTensor t(type, count);
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal(centre, spread);
    for (std::int64_t i = 0; i < count; ++i) t.set(i, normal(engine));
    return t;
  }

  DType type() const { return type_; }
  std::int64_t size() const { return count_; }
  void* data() { return at(0); }
  const void* data() const { return const_cast<TestTensor*>(this)->at(0); }
  void* at(std::int64_t i) { return bytes_.data() + (kGuard + i) * static_cast<std::int64_t>(dtype_bytes(type_)); }

  void set(std::int64_t i, float value) {
    switch (type_) {
      case DType::f16:
        return put(i, to_f16(value));
      case DType::bf16:
        return put(i, to_bf16(value));
      default:
        return put(i, value);
    }
  }
  float operator[](std::int64_t i) const {
    switch (type_) {
      case DType::f16:
        return to_f32(get<f16>(i));
      case DType::bf16:
        return to_f32(get<bf16>(i));
      default:
        return get<float>(i);
    }
  }

  bool guards_intact() const {
    TestTensor fresh(type_, 0);
    const float guard = fresh[-1];
    for (std::int64_t i = 0; i < kGuard; ++i) {
      if ((*this)[-1 - i] != guard || (*this)[count_ + i] != guard) return false;
    }
    return true;
  }
  bool same_bits(const TestTensor& other) const { return type_ == other.type_ && bytes_ == other.bytes_; }
  std::int64_t first_difference(const TestTensor& other) const {
    const std::int64_t size = static_cast<std::int64_t>(dtype_bytes(type_));
    for (std::int64_t i = 0; i < count_; ++i) {
      if (std::memcmp(bytes_.data() + (kGuard + i) * size, other.bytes_.data() + (kGuard + i) * size,
                      static_cast<std::size_t>(size)) != 0) {
        return i;
      }
    }
    return -1;
  }

 private:
  static constexpr std::int64_t kGuard = 37;  // no multiple of any vector: data() is unaligned
  static constexpr float kGuardValue = -1234;

  template <typename T>
  void put(std::int64_t i, T value) {
    std::memcpy(at(i), &value, sizeof(T));
  }
  template <typename T>
  T get(std::int64_t i) const {
    T value;
    std::memcpy(&value, const_cast<TestTensor*>(this)->at(i), sizeof(T));
    return value;
  }

  DType type_ = DType::f32;
  std::int64_t count_ = 0;
  std::vector<std::byte> bytes_;
};

// Every element of `got` within bound(i) of `expected`; the first failure prints its index, both values and the bound.
template <typename Bound>
::testing::AssertionResult all_within(const TestTensor& got, const TestTensor& expected, Bound bound) {
  if (got.size() != expected.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (std::int64_t i = 0; i < got.size(); ++i) {
    const double difference = std::fabs(double{got[i]} - double{expected[i]});
    if (!(difference <= bound(i)) && !(std::isnan(got[i]) && std::isnan(expected[i])) && got[i] != expected[i]) {
      return ::testing::AssertionFailure() << "[" << i << "] got " << got[i] << " expected " << expected[i]
                                           << " difference " << difference << " tolerance " << bound(i);
    }
  }
  if (!got.guards_intact()) return ::testing::AssertionFailure() << "wrote outside the tensor";
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult equal_bits(const TestTensor& a, const TestTensor& b) {
  if (a.same_bits(b)) return ::testing::AssertionSuccess();
  const std::int64_t i = a.first_difference(b);
  return ::testing::AssertionFailure() << "[" << i << "] " << a[i] << " and " << b[i] << " differ in their bits";
}

// One recorded call of the released runtime.
class RecordedCall {
 public:
  explicit RecordedCall(const std::string& name) {
    static const Json all = read_json(std::filesystem::path(SLUICE_SOURCE_DIR) / "tests/data/ort_vectors.json");
    for (const Json& candidate : all.as_array("ort_vectors.json")) {
      if (candidate.at("name", "case").as_string("name") == name) call_ = candidate;
    }
    EXPECT_TRUE(call_.is_object()) << "ort_vectors.json has no case " << name;
  }
  // Inputs by index, outputs by name; empty when absent.
  std::vector<double> input(std::size_t i) const {
    const auto& list = call_.at("inputs", "case").as_array("inputs");
    return i < list.size() && list[i].is_object() ? numbers(list[i], "data") : std::vector<double>();
  }
  std::vector<double> input_dims(std::size_t i) const {
    return numbers(call_.at("inputs", "case").as_array("inputs")[i], "dims");
  }
  TestTensor input_tensor(std::size_t i) const { return tensor(input(i)); }
  TestTensor output(const char* name) const {
    return tensor(numbers(call_.at("outputs", "case").at(name, "outputs"), "data"));
  }

 private:
  static TestTensor tensor(const std::vector<double>& values) {
    return TestTensor(DType::f32, std::vector<float>(values.begin(), values.end()));
  }
  static std::vector<double> numbers(const Json& tensor, const char* field) {
    std::vector<double> values;
    for (const Json& v : tensor.at(field, "tensor").as_array(field)) values.push_back(v.as_number(field));
    return values;
  }
  Json call_;
};

}  // namespace sluice::test

// Tensors that tests own, and random ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"
#include "ops/argument.h"

namespace sluice::ops {

struct TestTensor {
  DType dtype = DType::f32;
  Shape shape;
  std::vector<std::byte> bytes;

  std::int64_t elements() const;
  template <typename T>
  T* data() {
    return reinterpret_cast<T*>(bytes.data());
  }
};

// Uninitialised elements are zero.
TestTensor make_tensor(DType dtype, Shape shape);
TestTensor f32_tensor(Shape shape, std::vector<float> values);
TestTensor i32_tensor(Shape shape, std::vector<std::int32_t> values);
// f32, f16 or bf16 to one another; rounds to nearest even.
TestTensor cast(const TestTensor& tensor, DType dtype);
std::vector<float> to_floats(const TestTensor& tensor);
std::vector<std::int32_t> to_ints(const TestTensor& tensor);

// Seeded by its arguments alone.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}
  // [low, high], both included.
  std::int64_t integer(std::int64_t low, std::int64_t high);
  bool chance(double probability);
  // Uniform in [low, high), f32.
  TestTensor tensor(Shape shape, float low, float high);

 private:
  std::mt19937_64 engine_;
};

// The tensor as an input of a node; it must outlive the Argument.
Argument as_argument(const TestTensor& tensor, int index, std::string_view name);

}  // namespace sluice::ops

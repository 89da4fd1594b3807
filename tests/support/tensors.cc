#include "tests/support/tensors.h"

#include <cstring>

#include "base/error.h"
#include "base/float16.h"

namespace sluice::ops {

std::int64_t TestTensor::elements() const { return static_cast<std::int64_t>(element_count(shape).value()); }

TestTensor make_tensor(DType dtype, Shape shape) {
  TestTensor tensor{.dtype = dtype, .shape = std::move(shape), .bytes = {}};
  tensor.bytes.resize(byte_count(tensor.shape, dtype).value());
  return tensor;
}

TestTensor f32_tensor(Shape shape, std::vector<float> values) {
  TestTensor tensor = make_tensor(DType::f32, std::move(shape));
  SLUICE_CHECK(values.size() * sizeof(float) == tensor.bytes.size());
  if (!values.empty()) std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

TestTensor i32_tensor(Shape shape, std::vector<std::int32_t> values) {
  TestTensor tensor = make_tensor(DType::i32, std::move(shape));
  SLUICE_CHECK(values.size() * sizeof(std::int32_t) == tensor.bytes.size());
  if (!values.empty()) std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

std::vector<float> to_floats(const TestTensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::byte* at = tensor.bytes.data() + i * dtype_bytes(tensor.dtype);
    if (tensor.dtype == DType::f32) {
      std::memcpy(&values[i], at, sizeof(float));
      continue;
    }
    std::uint16_t bits;
    std::memcpy(&bits, at, sizeof bits);
    values[i] = tensor.dtype == DType::f16 ? to_f32(f16{bits}) : to_f32(bf16{bits});
  }
  return values;
}

std::vector<std::int32_t> to_ints(const TestTensor& tensor) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(tensor.elements()));
  if (!values.empty()) std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

TestTensor cast(const TestTensor& tensor, DType dtype) {
  if (tensor.dtype == dtype) return tensor;
  const std::vector<float> values = to_floats(tensor);
  if (dtype == DType::f32) return f32_tensor(tensor.shape, values);
  TestTensor result = make_tensor(dtype, tensor.shape);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t bits = dtype == DType::f16 ? to_f16(values[i]).bits : to_bf16(values[i]).bits;
    std::memcpy(result.bytes.data() + i * sizeof bits, &bits, sizeof bits);
  }
  return result;
}

std::int64_t Draw::integer(std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
}

bool Draw::chance(double probability) { return static_cast<double>(engine_() >> 11) * 0x1p-53 < probability; }

TestTensor Draw::tensor(Shape shape, float low, float high) {
  TestTensor tensor = make_tensor(DType::f32, std::move(shape));
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    const float unit = static_cast<float>(engine_() >> 40) * 0x1p-24f;
    tensor.data<float>()[i] = low + (high - low) * unit;
  }
  return tensor;
}

Argument as_argument(const TestTensor& tensor, int index, std::string_view name) {
  Argument argument;
  argument.index = index;
  argument.name = name;
  argument.present = true;
  argument.dtype = tensor.dtype;
  argument.shape = Dims(tensor.shape);
  argument.data = tensor.bytes.data();
  return argument;
}

}  // namespace sluice::ops

#include "ops/node.h"

#include "base/error.h"

namespace sluice::ops {
namespace {

// True when the call succeeded; an attribute that is absent or of another type is a status like any other.
bool succeeded(const OrtApi& api, OrtStatus* status) {
  if (status == nullptr) return true;
  api.ReleaseStatus(status);
  return false;
}

// ONNX Runtime tells an attribute that is absent from one of a type it has no reader for (a tensor, a list of strings) by
// the words of its status alone. Words that are not known say nothing.
bool says_other_type(const OrtApi& api, OrtStatus* status) {
  if (status == nullptr) return false;
  const std::string_view words = api.GetErrorMessage(status);
  const bool says = words.find("don't match") != words.npos || words.find("is expected to have type") != words.npos;
  api.ReleaseStatus(status);
  return says;
}

// ONNX Runtime's two-call protocol for strings: the size with its terminator, then the text.
template <typename Read>
std::optional<std::string> read_text(const OrtApi& api, Read&& read) {
  std::size_t size = 0;
  if (!succeeded(api, read(nullptr, &size))) return std::nullopt;
  std::string text(size, '\0');
  if (!succeeded(api, read(text.data(), &size))) return std::nullopt;
  if (size > 0) text.resize(size - 1);
  return text;
}

template <typename T, typename Read>
std::optional<std::vector<T>> read_array(const OrtApi& api, Read&& read) {
  std::size_t size = 0;
  if (!succeeded(api, read(nullptr, &size))) return std::nullopt;
  std::vector<T> values(size);
  if (size > 0 && !succeeded(api, read(values.data(), &size))) return std::nullopt;
  return values;
}

}  // namespace

Argument read_tensor(const OrtApi& api, const OrtValue& value, int index, std::string_view name) {
  Argument argument;
  argument.index = index;
  argument.name = name;
  argument.present = true;
  OrtHandle<OrtTensorTypeAndShapeInfo> info(api.ReleaseTensorTypeAndShapeInfo);
  check(api, api.GetTensorTypeAndShape(&value, info.out()));
  ONNXTensorElementDataType type;
  check(api, api.GetTensorElementType(info.get(), &type));
  argument.dtype = dtype_from_ort(type, label(argument));
  std::size_t rank = 0;
  check(api, api.GetDimensionsCount(info.get(), &rank));
  std::array<std::int64_t, Dims::kMaxRank> extents{};
  if (rank > extents.size()) fail("{}: expected rank at most {}, found {}", label(argument), extents.size(), rank);
  check(api, api.GetDimensions(info.get(), extents.data(), rank));
  argument.shape = Dims(std::span<const std::int64_t>(extents.data(), rank));
  void* data = nullptr;
  check(api, api.GetTensorMutableData(const_cast<OrtValue*>(&value), &data));  // the header of 21 has no const form
  argument.data = data;
  return argument;
}

std::optional<std::int64_t> Node::find_integer(const char* name) const {
  std::int64_t value = 0;
  if (succeeded(api_, api_.KernelInfoGetAttribute_int64(&info_, name, &value))) return value;
  refuse_other_type(name, "an integer");
  return std::nullopt;
}

std::optional<float> Node::find_number(const char* name) const {
  float value = 0;
  if (succeeded(api_, api_.KernelInfoGetAttribute_float(&info_, name, &value))) return value;
  refuse_other_type(name, "a float");
  return std::nullopt;
}

std::optional<std::string> Node::find_text(const char* name) const {
  auto value = read_text(
      api_, [&](char* out, std::size_t* size) { return api_.KernelInfoGetAttribute_string(&info_, name, out, size); });
  if (!value) refuse_other_type(name, "a string");
  return value;
}

std::optional<std::vector<std::int64_t>> Node::find_integers(const char* name) const {
  auto value = read_array<std::int64_t>(api_, [&](std::int64_t* out, std::size_t* size) {
    return api_.KernelInfoGetAttributeArray_int64(&info_, name, out, size);
  });
  if (!value) refuse_other_type(name, "a list of integers");
  return value;
}

void Node::refuse_other_type(const char* name, std::string_view expected) const {
  std::int64_t integer = 0;
  float number = 0;
  std::size_t size = 0;
  std::string_view found;
  if (succeeded(api_, api_.KernelInfoGetAttribute_int64(&info_, name, &integer))) {
    found = "an integer";
  } else if (succeeded(api_, api_.KernelInfoGetAttribute_float(&info_, name, &number))) {
    found = "a float";
  } else if (succeeded(api_, api_.KernelInfoGetAttribute_string(&info_, name, nullptr, &size))) {
    found = "a string";
  } else if (succeeded(api_, api_.KernelInfoGetAttributeArray_int64(&info_, name, nullptr, &size)) && size > 0) {
    found = "a list of integers";
  } else if (succeeded(api_, api_.KernelInfoGetAttributeArray_float(&info_, name, nullptr, &size)) && size > 0) {
    found = "a list of floats";
  } else if (says_other_type(api_, api_.KernelInfoGetAttribute_int64(&info_, name, &integer))) {
    found = "something else";
  } else {
    return;
  }
  fail("attribute {}: expected {}, found {}", name, expected, found);
}

std::string Node::name() const {
  const auto name =
      read_text(api_, [&](char* out, std::size_t* size) { return api_.KernelInfo_GetNodeName(&info_, out, size); });
  return name.value_or("");
}

std::size_t Node::input_count() const {
  std::size_t count = 0;
  check(api_, api_.KernelInfo_GetInputCount(&info_, &count));
  return count;
}

std::size_t Node::output_count() const {
  std::size_t count = 0;
  check(api_, api_.KernelInfo_GetOutputCount(&info_, &count));
  return count;
}

bool Node::has_input(int index) const {
  const auto position = static_cast<std::size_t>(index);
  if (position >= input_count()) return false;
  const auto name = read_text(
      api_, [&](char* out, std::size_t* size) { return api_.KernelInfo_GetInputName(&info_, position, out, size); });
  return name && !name->empty();
}

std::optional<Argument> Node::constant_input(int index) const {
  const auto position = static_cast<std::size_t>(index);
  if (!has_input(index)) return std::nullopt;
  int is_constant = 0;
  const OrtValue* value = nullptr;
  check(api_, api_.KernelInfoGetConstantInput_tensor(&info_, position, &is_constant, &value));
  if (is_constant == 0 || value == nullptr) return std::nullopt;
  return read_tensor(api_, *value, index, spec().inputs[position].name);
}

}  // namespace sluice::ops

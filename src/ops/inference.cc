#include "ops/inference.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/onnx_type.h"
#include "ops/attributes.h"
#include "opset/shape_context.h"

namespace sluice::ops {
namespace {

struct Tensor {
  std::optional<ONNXTensorElementDataType> type;  // empty: the input is left out
  Extents shape;
};

class NodeAttributes final : public Attributes {
 public:
  NodeAttributes(const OperatorSpec& spec, const OrtApi& api, const OrtShapeInferContext& context)
      : Attributes(spec), api_(api), context_(context) {}

  bool has(const char* name) const { return find(name) != nullptr; }

 private:
  // Null when the node has no such attribute.
  const OrtOpAttr* find(const char* name) const {
    const OrtOpAttr* attribute = nullptr;
    if (OrtStatus* status = api_.ShapeInferContext_GetAttribute(&context_, name, &attribute)) {
      api_.ReleaseStatus(status);
      return nullptr;
    }
    return attribute;
  }

  // Reads an attribute of `type` into a buffer of the bytes ONNX Runtime asks for.
  template <typename T>
  std::optional<std::vector<T>> read(const char* name, OrtOpAttrType type, std::size_t first_guess) const {
    const OrtOpAttr* attribute = find(name);
    if (attribute == nullptr) return std::nullopt;
    std::vector<T> values(first_guess);
    std::size_t bytes = 0;
    OrtStatus* status = api_.ReadOpAttr(attribute, type, values.data(), values.size() * sizeof(T), &bytes);
    if (status != nullptr && bytes > values.size() * sizeof(T)) {
      api_.ReleaseStatus(status);
      values.resize(bytes / sizeof(T));
      status = api_.ReadOpAttr(attribute, type, values.data(), bytes, &bytes);
    }
    if (status != nullptr) {
      api_.ReleaseStatus(status);
      fail("attribute {} has another type than the operator's contract says", name);
    }
    values.resize(bytes / sizeof(T));
    return values;
  }

  std::optional<std::int64_t> find_integer(const char* name) const override {
    const auto values = read<std::int64_t>(name, ORT_OP_ATTR_INT, 1);
    return values ? std::optional(values->at(0)) : std::nullopt;
  }
  std::optional<float> find_number(const char* name) const override {
    const auto values = read<float>(name, ORT_OP_ATTR_FLOAT, 1);
    return values ? std::optional(values->at(0)) : std::nullopt;
  }
  std::optional<std::string> find_text(const char* name) const override {
    const auto values = read<char>(name, ORT_OP_ATTR_STRING, 64);
    return values ? std::optional(std::string(values->begin(), values->end()).c_str()) : std::nullopt;
  }
  std::optional<std::vector<std::int64_t>> find_integers(const char* name) const override {
    return read<std::int64_t>(name, ORT_OP_ATTR_INTS, 8);
  }

  const OrtApi& api_;
  const OrtShapeInferContext& context_;
};

Tensor read_input(const OrtApi& api, const OrtShapeInferContext& context, std::size_t index, std::string_view op,
                  UnknownExtents& unknown) {
  Tensor tensor;
  OrtTensorTypeAndShapeInfo* info = nullptr;  // the context's own
  OrtStatus* status = api.ShapeInferContext_GetInputTypeShape(&context, index, &info);
  if (status != nullptr) api.ReleaseStatus(status);
  if (info == nullptr) return tensor;
  ONNXTensorElementDataType type;
  check(api, api.GetTensorElementType(info, &type));
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED) return tensor;
  tensor.type = type;
  std::size_t rank = 0;
  check(api, api.GetDimensionsCount(info, &rank));
  std::vector<std::int64_t> numbers(rank);
  std::vector<const char*> symbols(rank);
  check(api, api.GetDimensions(info, numbers.data(), rank));
  check(api, api.GetSymbolicDimensions(info, symbols.data(), rank));
  for (std::size_t axis = 0; axis < rank; ++axis) {
    if (numbers[axis] >= 0) {
      tensor.shape.push_back(extent(numbers[axis]));
    } else if (symbols[axis] != nullptr && *symbols[axis] != '\0') {
      tensor.shape.push_back(extent(symbols[axis]));
    } else {
      tensor.shape.push_back(extent(fmt::format("{}_unknown_{}", op, unknown.fetch_add(1))));
    }
  }
  return tensor;
}

// The node as opset/ wants to see it.
class NodeShapes final : public ShapeContext {
 public:
  NodeShapes(const NodeAttributes& attributes, std::vector<Tensor> inputs)
      : attributes_(attributes), inputs_(std::move(inputs)), outputs_(attributes.spec().outputs.size()) {}

  std::size_t input_count() const override { return inputs_.size(); }
  // Which outputs a node lists is not known here; infer() passes on only those that it must.
  std::size_t output_count() const override { return outputs_.size(); }
  bool has_input(std::size_t index) const override { return index < inputs_.size() && inputs_[index].type.has_value(); }
  bool has_output(std::size_t index) const override { return index < outputs_.size(); }
  const Extents& input_shape(std::size_t index) const override { return inputs_.at(index).shape; }
  std::optional<Extents> input_contents(std::size_t) const override { return std::nullopt; }
  std::int64_t integer(std::string_view name) const override { return attributes_.integer(name); }
  std::string text(std::string_view name) const override { return attributes_.text(name); }
  std::vector<std::int64_t> integers(std::string_view name) const override { return attributes_.integers(name); }
  bool has_attribute(std::string_view name) const override { return attributes_.has(std::string(name).c_str()); }
  void set_output_shape(std::size_t index, Extents shape) override { outputs_.at(index) = std::move(shape); }
  void set_output_contents(std::size_t, Extents) override {}

  const std::vector<std::optional<Extents>>& outputs() const { return outputs_; }

  // No operator here takes a scalar: an input without extents is one whose rank is not known.
  bool ranks_known() const {
    return std::ranges::none_of(inputs_, [](const Tensor& t) { return t.type.has_value() && t.shape.empty(); });
  }
  bool is_gated_delta_net() const { return attributes_.spec().name == "GatedDeltaNet"; }

 private:
  const NodeAttributes& attributes_;
  std::vector<Tensor> inputs_;
  std::vector<std::optional<Extents>> outputs_;
};

// The type of the first input that shares the output's variable; one that the contract does not allow gives way to any
// that it does, so that the kernel, not ONNX Runtime's comparison with the declared output, says what is wrong.
std::optional<ONNXTensorElementDataType> output_type(const OperatorSpec& spec, const std::vector<Tensor>& inputs,
                                                     const PortSpec& output) {
  if (const auto only = only_type(spec, output)) return dtype_to_ort(*only);
  std::optional<ONNXTensorElementDataType> first;
  for (std::size_t i = 0; i < inputs.size() && i < spec.inputs.size(); ++i) {
    if (spec.inputs[i].type != output.type || !inputs[i].type) continue;
    const auto dtype = dtype_of_onnx(*inputs[i].type);
    if (dtype && spec.allowed(output.type).contains(*dtype)) return inputs[i].type;
    if (!first) first = inputs[i].type;
  }
  return first;
}

Extents unknown_shape(const OperatorSpec& spec, std::size_t rank, UnknownExtents& unknown) {
  Extents shape;
  for (std::size_t axis = 0; axis < rank; ++axis) {
    shape.push_back(extent(fmt::format("{}_unknown_{}", spec.name, unknown.fetch_add(1))));
  }
  return shape;
}

// The rank of an output where the shapes of the inputs do not tell it; 0 where nothing does.
std::size_t rank_of_output(const NodeShapes& shapes, const PortSpec& output) {
  if (output.rank > 0) return output.rank;
  const std::size_t rank = shapes.input_shape(0).size();
  if (!shapes.is_gated_delta_net()) return rank;
  if (shapes.has_input(2)) return std::max(rank, shapes.input_shape(2).size());  // query and value are of one rank
  return rank > 0 ? rank + 1 : 0;  // [.., width] for query, key and value: heads are an axis more
}

// A node whose shapes do not fit or are not known gets outputs of the right type all the same: without one ONNX Runtime
// would guess it, and complain of its guess instead of letting the kernel say what is wrong. A type comes only with a
// shape.
void infer_shapes(const OperatorSpec& spec, NodeShapes& shapes, UnknownExtents& unknown) {
  try {
    if (!shapes.ranks_known()) fail("an input without shape");
    if (spec.infer != nullptr) return spec.infer(shapes);
    shapes.set_output_shape(0, shapes.input_shape(0));
  } catch (const Error&) {
    for (std::size_t i = 0; i < spec.outputs.size() && spec.outputs[i].presence == Presence::required; ++i) {
      shapes.set_output_shape(i, unknown_shape(spec, rank_of_output(shapes, spec.outputs[i]), unknown));
    }
  }
}

void set_output(const OrtApi& api, OrtShapeInferContext& context, std::size_t index, ONNXTensorElementDataType type,
                const Extents& shape) {
  OrtHandle<OrtTensorTypeAndShapeInfo> info(api.ReleaseTensorTypeAndShapeInfo);
  check(api, api.CreateTensorTypeAndShapeInfo(info.out()));
  check(api, api.SetTensorElementType(info.get(), type));
  std::vector<std::int64_t> numbers;
  std::vector<const char*> symbols;
  for (const Extent& e : shape) {
    numbers.push_back(e.value);
    symbols.push_back(e.symbol.c_str());
  }
  check(api, api.SetDimensions(info.get(), numbers.data(), numbers.size()));
  check(api, api.SetSymbolicDimensions(info.get(), symbols.data(), symbols.size()));
  check(api, api.ShapeInferContext_SetOutputTypeShape(&context, index, info.get()));
}

}  // namespace

std::optional<DType> only_type(const OperatorSpec& spec, const PortSpec& port) {
  for (const DType dtype : {DType::f32, DType::i32, DType::i64}) {
    if (spec.allowed(port.type) == TypeSet{dtype}) return dtype;
  }
  return std::nullopt;
}

void infer(const OrtApi& api, const OperatorSpec& spec, OrtShapeInferContext& context, UnknownExtents& unknown) {
  std::size_t count = 0;
  check(api, api.ShapeInferContext_GetInputCount(&context, &count));
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < count; ++i) inputs.push_back(read_input(api, context, i, spec.name, unknown));
  const NodeAttributes attributes(spec, api, context);
  NodeShapes shapes(attributes, inputs);
  infer_shapes(spec, shapes, unknown);
  for (std::size_t i = 0; i < shapes.outputs().size(); ++i) {
    if (spec.outputs[i].presence != Presence::required) break;
    const auto type = output_type(spec, inputs, spec.outputs[i]);
    if (type && shapes.outputs()[i]) set_output(api, context, i, *type, *shapes.outputs()[i]);
  }
}

}  // namespace sluice::ops

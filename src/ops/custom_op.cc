#include "ops/custom_op.h"

#include <limits>
#include <new>

namespace sluice::ops {

OrtStatus* status_of_current_exception(const OrtApi& api, std::string_view where) noexcept {
  try {
    try {
      throw;
    } catch (const Error& error) {
      return api.CreateStatus(ORT_INVALID_ARGUMENT, fmt::format("{}{}", where, error.what()).c_str());
    } catch (const std::bad_alloc&) {
      return api.CreateStatus(ORT_FAIL, fmt::format("{}out of memory", where).c_str());
    } catch (const std::exception& error) {
      return api.CreateStatus(ORT_FAIL, fmt::format("{}internal error: {}", where, error.what()).c_str());
    } catch (...) {
      return api.CreateStatus(ORT_FAIL, fmt::format("{}internal error", where).c_str());
    }
  } catch (...) {
    return api.CreateStatus(ORT_FAIL, "out of memory while reporting an error");
  }
}

namespace detail {
namespace {

const OperatorSpec& spec_of(const OrtCustomOp* op) { return *static_cast<const CustomOp*>(op)->spec; }

OrtCustomOpInputOutputCharacteristic characteristic(const PortSpec& port) {
  return port.presence == Presence::required ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
}

// Undefined lets every element type through to the adapter, whose errors name input, expected and found.
ONNXTensorElementDataType ORT_API_CALL any_type(const OrtCustomOp*, std::size_t) {
  return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
}

// The recurrent state is f32 whatever the activations are; what depends on an input's type is left to infer_outputs.
ONNXTensorElementDataType ORT_API_CALL output_type(const OrtCustomOp* op, std::size_t index) {
  const auto only = only_type(spec_of(op), spec_of(op).outputs[index]);
  return only ? dtype_to_ort(*only) : ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
}

OrtStatus* ORT_API_CALL infer_outputs(const OrtCustomOp* op, OrtShapeInferContext* context) noexcept {
  const auto& custom = static_cast<const CustomOp&>(*op);
  try {
    infer(*custom.api, *custom.spec, *context, *custom.unknown_extents);
    return nullptr;
  } catch (...) {
    return status_of_current_exception(*custom.api, custom.spec->name);
  }
}

}  // namespace

std::string node_label(const OperatorSpec& spec, const Node& node) {
  return fmt::format("{} node '{}': ", spec.name, node.name());
}

CustomOp describe(const OrtApi& api, Level level, std::string_view domain, std::string_view name) {
  CustomOp op{};
  op.api = &api;
  op.level = level;
  op.unknown_extents = std::make_unique<UnknownExtents>(0);
  op.spec = find_operator(domain, name);
  SLUICE_CHECK(op.spec != nullptr);
  op.version = kOrtApiVersion;
  // The names of opset/ are literals, hence end in a zero.
  op.GetName = [](const OrtCustomOp* self) { return spec_of(self).name.data(); };
  op.GetExecutionProviderType = [](const OrtCustomOp*) { return static_cast<const char*>(nullptr); };
  op.GetInputType = any_type;
  op.GetOutputType = output_type;
  op.GetInputTypeCount = [](const OrtCustomOp* self) { return spec_of(self).inputs.size(); };
  op.GetOutputTypeCount = [](const OrtCustomOp* self) { return spec_of(self).outputs.size(); };
  op.GetInputCharacteristic = [](const OrtCustomOp* self, std::size_t index) {
    return characteristic(spec_of(self).inputs[index]);
  };
  op.GetOutputCharacteristic = [](const OrtCustomOp* self, std::size_t index) {
    return characteristic(spec_of(self).outputs[index]);
  };
  op.GetInputMemoryType = [](const OrtCustomOp*, std::size_t) { return OrtMemTypeDefault; };
  op.GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
  op.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
  op.GetEndVersion = [](const OrtCustomOp*) { return std::numeric_limits<int>::max(); };
  op.InferOutputShapeFn = infer_outputs;
  return op;
}

}  // namespace detail
}  // namespace sluice::ops

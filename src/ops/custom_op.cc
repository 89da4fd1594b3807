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

ONNXTensorElementDataType ORT_API_CALL input_type(const OrtCustomOp* op, std::size_t index) {
  const auto& custom = *static_cast<const CustomOp*>(op);
  if (static_cast<int>(index) != custom.typed_input) return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  return dtype_to_ort(custom.input_type);
}

ONNXTensorElementDataType ORT_API_CALL output_type(const OrtCustomOp* op, std::size_t index) {
  const auto& custom = *static_cast<const CustomOp*>(op);
  const PortSpec& output = custom.spec->outputs[index];
  if (const auto only = only_type(*custom.spec, output)) return dtype_to_ort(*only);
  const bool inferred = output.presence == Presence::required;
  if (inferred || custom.typed_input == kNoTypedInput) return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  const PortSpec& typed = custom.spec->inputs[static_cast<std::size_t>(custom.typed_input)];
  return output.type == typed.type ? dtype_to_ort(custom.input_type) : ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
}

// ONNX Runtime drops the status of this callback. What is wrong with a node is said when its kernel is made or run.
OrtStatus* ORT_API_CALL infer_outputs(const OrtCustomOp* op, OrtShapeInferContext* context) noexcept {
  const auto& custom = static_cast<const CustomOp&>(*op);
  try {
    infer(*custom.api, *custom.spec, *context, *custom.unknown_extents);
  } catch (const std::exception&) {
    return nullptr;
  }
  return nullptr;
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
  op.GetInputType = input_type;
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

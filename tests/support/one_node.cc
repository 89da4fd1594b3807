#include "tests/support/one_node.h"

#include "base/error.h"
#include "base/onnx_type.h"
#include "onnx/serialize.h"
#include "ops/register.h"

namespace sluice::ops {
namespace {

Extents extents_of(const NodeCase& node, std::size_t input) {
  Extents result;
  for (std::size_t axis = 0; axis < node.inputs[input]->shape.size(); ++axis) {
    result.push_back(node.fixed_shapes ? extent(node.inputs[input]->shape[axis])
                                       : extent(fmt::format("i{}_{}", input, axis)));
  }
  return result;
}

// Where in the session's list of inputs each present, fed input stands.
std::vector<std::size_t> fed_inputs(const NodeCase& node) {
  std::vector<std::size_t> fed;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i] && !node.initializers.contains(i)) fed.push_back(i);
  }
  return fed;
}

}  // namespace

std::string serialize_case(const NodeCase& node) {
  OnnxModel model{.opsets = {{"", 22}, {"com.microsoft", 1}, {"sluice", 1}}, .producer_version = "", .graph = Graph()};
  sluice::Node built;
  built.name = "node";
  built.domain = node.domain;
  built.op = node.op;
  built.attributes = node.attributes;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (!node.inputs[i]) {
      built.inputs.emplace_back();
    } else if (node.initializers.contains(i)) {
      built.inputs.push_back(model.graph.add_initializer(fmt::format("i{}", i), node.inputs[i]->dtype,
                                                         node.inputs[i]->shape, node.inputs[i]->bytes));
    } else {
      built.inputs.push_back(model.graph.add_input(fmt::format("i{}", i), node.inputs[i]->dtype, extents_of(node, i)));
    }
  }
  std::vector<Value> outputs;
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    built.outputs.emplace_back();
    if (!node.outputs[i]) continue;
    Extents shape;
    for (std::size_t axis = 0; axis < node.outputs[i]->rank; ++axis) {
      shape.push_back(extent(fmt::format("o{}_{}", i, axis)));
    }
    built.outputs.back() = model.graph.add_value(fmt::format("o{}", i), node.outputs[i]->dtype, shape);
    outputs.push_back(built.outputs.back());
  }
  model.graph.add_node(std::move(built));
  for (const Value output : outputs) model.graph.add_output(output);
  return serialize(model);
}

const Ort::Env& test_environment() {
  static const Ort::Env environment(ORT_LOGGING_LEVEL_FATAL, "ops_test");
  return environment;
}

Ort::SessionOptions session_options(Kernels kernels, int threads) {
  Ort::SessionOptions options;
  options.SetIntraOpNumThreads(threads);
  options.AddConfigEntry("session.intra_op.allow_spinning", "0");
  if (kernels) Ort::ThrowOnError(register_custom_ops(options, OrtGetApiBase(), *kernels));
  return options;
}

Ort::Value as_value(TestTensor& tensor) {
  static std::byte nothing;  // ONNX Runtime wants an address, also for no elements
  void* data = tensor.bytes.empty() ? &nothing : tensor.bytes.data();
  const Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  return Ort::Value::CreateTensor(memory, data, tensor.bytes.size(), tensor.shape.data(), tensor.shape.size(),
                                  static_cast<ONNXTensorElementDataType>(onnx_element_type(tensor.dtype)));
}

TestTensor from_value(const Ort::Value& value) {
  const auto info = value.GetTensorTypeAndShapeInfo();
  TestTensor tensor = make_tensor(dtype_of_onnx(info.GetElementType()).value(), info.GetShape());
  const auto* data = static_cast<const std::byte*>(value.GetTensorRawData());
  tensor.bytes.assign(data, data + tensor.bytes.size());
  return tensor;
}

Outcome run_node(const NodeCase& node, Kernels kernels, int threads) {
  Outcome outcome;
  try {
    const std::string model = serialize_case(node);
    Ort::Session session(test_environment(), model.data(), model.size(), session_options(kernels, threads));
    std::vector<std::string> names;
    std::vector<TestTensor> tensors;
    for (const std::size_t i : fed_inputs(node)) {
      names.push_back(fmt::format("i{}", i));
      tensors.push_back(*node.inputs[i]);
    }
    std::vector<const char*> input_names;
    std::vector<Ort::Value> values;
    for (std::size_t i = 0; i < names.size(); ++i) {
      input_names.push_back(names[i].c_str());
      values.push_back(as_value(tensors[i]));
    }
    std::vector<std::string> output_names;
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i]) output_names.push_back(fmt::format("o{}", i));
    }
    std::vector<const char*> wanted;
    for (const std::string& name : output_names) wanted.push_back(name.c_str());
    const auto results = session.Run(Ort::RunOptions{nullptr}, input_names.data(), values.data(), values.size(),
                                     wanted.data(), wanted.size());
    for (const Ort::Value& result : results) outcome.outputs.push_back(from_value(result));
  } catch (const std::exception& error) {
    outcome.error = error.what();
  }
  return outcome;
}

}  // namespace sluice::ops

#include "bench/peer.h"

#include <onnxruntime_cxx_api.h>

#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/onnx_type.h"
#include "onnx/serialize.h"

namespace sluice::bench {
namespace {

std::size_t bytes_of(const PeerTensor& tensor) {
  std::size_t bytes = dtype_bytes(tensor.dtype);
  for (const std::int64_t extent : tensor.shape) bytes *= static_cast<std::size_t>(extent);
  return bytes;
}

Extents extents_of(const PeerTensor& tensor) {
  Extents extents;
  for (const std::int64_t extent_of_axis : tensor.shape) extents.push_back(extent(extent_of_axis));
  return extents;
}

Value add_operand(Graph& graph, const PeerTensor& tensor) {
  if (tensor.name.empty()) return {};
  if (!tensor.constant) return graph.add_input(tensor.name, tensor.dtype, extents_of(tensor));
  const auto* bytes = static_cast<const std::byte*>(tensor.data);
  return graph.add_initializer(tensor.name, tensor.dtype, tensor.shape,
                               std::vector<std::byte>(bytes, bytes + bytes_of(tensor)));
}

// The bytes of a model whose graph is this node.
std::string one_node_model(const PeerNode& node) {
  OnnxModel model{.opsets = {{"", 21}}, .producer_version = "", .graph = Graph("peer")};
  if (!node.domain.empty()) model.opsets.emplace_back(node.domain, 1);
  Node built;
  built.name = built.op = node.op;
  built.domain = node.domain;
  built.attributes = node.attributes;
  for (const PeerTensor& input : node.inputs) built.inputs.push_back(add_operand(model.graph, input));
  std::vector<Value> outputs;
  for (const PeerTensor& output : node.outputs) {
    built.outputs.emplace_back();
    if (output.name.empty()) continue;
    built.outputs.back() = model.graph.add_value(output.name, output.dtype, extents_of(output));
    outputs.push_back(built.outputs.back());
  }
  model.graph.add_node(std::move(built));
  for (const Value output : outputs) model.graph.add_output(output);
  return serialize(model);
}

}  // namespace

struct Peer::State {
  PeerNode node;
  Ort::Env env{ORT_LOGGING_LEVEL_ERROR, "peer"};
  Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  Ort::Session session{nullptr};
  Ort::IoBinding binding{nullptr};

  Ort::Value tensor(const PeerTensor& t, void* data) const {
    return Ort::Value::CreateTensor(memory, data, bytes_of(t), t.shape.data(), t.shape.size(),
                                    static_cast<ONNXTensorElementDataType>(onnx_element_type(t.dtype)));
  }
};

Peer::Peer(const PeerNode& node, int threads, const std::string& library) : state_(std::make_unique<State>()) {
  state_->node = node;
  const std::string model = one_node_model(node);
  Ort::SessionOptions options;
  options.SetIntraOpNumThreads(threads);
  options.SetInterOpNumThreads(1);
  // Awake from one call to the next, but not for the tenth of a second that is the default: whoever is timed next needs
  // the cores.
  options.AddConfigEntry("session.intra_op.spin_duration_us", "200");
  try {
    if (!library.empty()) options.RegisterCustomOpsLibrary(library.c_str());
    state_->session = Ort::Session(state_->env, model.data(), model.size(), options);
    state_->binding = Ort::IoBinding(state_->session);
    for (const PeerTensor& t : node.inputs) {
      if (!t.name.empty() && !t.constant) rebind(t.name, t.data);
    }
    for (const PeerTensor& t : node.outputs) {
      if (!t.name.empty()) rebind(t.name, t.data);
    }
  } catch (const Ort::Exception& e) {
    fail("ONNX Runtime's {}: {}", node.op, e.what());
  }
}

Peer::~Peer() = default;

void Peer::run() {
  try {
    state_->session.Run(Ort::RunOptions(), state_->binding);
  } catch (const Ort::Exception& e) {
    fail("ONNX Runtime's {}: {}", state_->node.op, e.what());
  }
}

void Peer::rebind(const std::string& name, void* data) {
  for (const PeerTensor& t : state_->node.inputs) {
    if (t.name == name) state_->binding.BindInput(name.c_str(), state_->tensor(t, data));
  }
  for (const PeerTensor& t : state_->node.outputs) {
    if (t.name == name) state_->binding.BindOutput(name.c_str(), state_->tensor(t, data));
  }
}

}  // namespace sluice::bench

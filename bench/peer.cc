#include "bench/peer.h"

#include <onnxruntime_cxx_api.h>

#include <bit>
#include <string_view>

#include "base/error.h"

namespace sluice::bench {
namespace {

// The few protobuf messages of a one-node model, written field by field (onnx.proto, ModelProto and below).
class Message {
 public:
  Message& number(int field, std::uint64_t value) {
    varint(static_cast<std::uint64_t>(field) << 3);
    varint(value);
    return *this;
  }
  Message& real(int field, float value) {
    varint(static_cast<std::uint64_t>(field) << 3 | 5);
    const auto bits = std::bit_cast<std::uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) bytes_ += static_cast<char>(bits >> shift & 0xff);
    return *this;
  }
  Message& text(int field, std::string_view value) {
    varint(static_cast<std::uint64_t>(field) << 3 | 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return text(field, value.bytes_); }
  const std::string& bytes() const { return bytes_; }

 private:
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

ONNXTensorElementDataType onnx_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    case DType::f16:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
    case DType::bf16:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
    case DType::i32:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
    case DType::i64:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
    case DType::u8:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
    default:
      fail("a peer's tensor is {}: not a type it is measured with", dtype_name(dtype));
  }
}

Message value_info(const PeerTensor& tensor) {
  Message shape;
  for (const std::int64_t extent : tensor.shape)
    shape.message(1, Message().number(1, static_cast<std::uint64_t>(extent)));
  const Message tensor_type =
      Message().number(1, static_cast<std::uint64_t>(onnx_type(tensor.dtype))).message(2, shape);
  return Message().text(1, tensor.name).message(2, Message().message(1, tensor_type));
}

std::size_t bytes_of(const PeerTensor& tensor) {
  std::size_t bytes = dtype_bytes(tensor.dtype);
  for (const std::int64_t extent : tensor.shape) bytes *= static_cast<std::size_t>(extent);
  return bytes;
}

Message initializer(const PeerTensor& tensor) {
  Message out;
  for (const std::int64_t extent : tensor.shape) out.number(1, static_cast<std::uint64_t>(extent));
  out.number(2, static_cast<std::uint64_t>(onnx_type(tensor.dtype))).text(8, tensor.name);
  return out.text(9, {static_cast<const char*>(tensor.data), bytes_of(tensor)});
}

Message attribute(const PeerAttribute& a) {
  Message out;
  out.text(1, a.name);
  if (const auto* integer = std::get_if<std::int64_t>(&a.value)) {
    out.number(3, static_cast<std::uint64_t>(*integer)).number(20, 2);
  } else if (const auto* real = std::get_if<float>(&a.value)) {
    out.real(2, *real).number(20, 1);
  } else {
    out.text(4, std::get<std::string>(a.value)).number(20, 3);
  }
  return out;
}

}  // namespace

std::string one_node_model(const PeerNode& node) {
  Message proto;
  Message graph;
  for (const PeerTensor& input : node.inputs) proto.text(1, input.name);
  for (const PeerTensor& output : node.outputs) proto.text(2, output.name);
  proto.text(3, node.op).text(4, node.op);
  for (const PeerAttribute& a : node.attributes) proto.message(5, attribute(a));
  proto.text(7, node.domain);
  graph.message(1, proto).text(2, "peer");
  for (const PeerTensor& input : node.inputs) {
    if (input.constant) graph.message(5, initializer(input));
    if (!input.name.empty() && !input.constant) graph.message(11, value_info(input));
  }
  for (const PeerTensor& output : node.outputs) {
    if (!output.name.empty()) graph.message(12, value_info(output));
  }
  Message model;
  model.number(1, 10).message(7, graph).message(8, Message().text(1, "").number(2, 21));
  if (!node.domain.empty()) model.message(8, Message().text(1, node.domain).number(2, 1));
  return model.bytes();
}

struct Peer::State {
  PeerNode node;
  Ort::Env env{ORT_LOGGING_LEVEL_ERROR, "peer"};
  Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  Ort::Session session{nullptr};
  Ort::IoBinding binding{nullptr};

  Ort::Value tensor(const PeerTensor& t, void* data) const {
    return Ort::Value::CreateTensor(memory, data, bytes_of(t), t.shape.data(), t.shape.size(), onnx_type(t.dtype));
  }
};

Peer::Peer(const PeerNode& node, int threads, const std::string& library) : state_(std::make_unique<State>()) {
  state_->node = node;
  const std::string model = one_node_model(node);
  Ort::SessionOptions options;
  options.SetIntraOpNumThreads(threads);
  options.SetInterOpNumThreads(1);
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

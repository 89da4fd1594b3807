#include "onnx/serialize.h"

#include <onnx-ml.pb.h>

#include <set>

#include "base/error.h"
#include "base/onnx_type.h"

namespace sluice {
namespace {

constexpr std::size_t kMaxModelBytes = (std::size_t{1} << 31) - 1;  // protobuf's limit for one message

void write_tensor_type(const ValueInfo& value, ::onnx::TypeProto& out) {
  auto& tensor = *out.mutable_tensor_type();
  tensor.set_elem_type(onnx_element_type(value.dtype));
  auto& shape = *tensor.mutable_shape();
  for (const Extent& e : value.shape) {
    auto& dim = *shape.add_dim();
    if (e.value >= 0) {
      dim.set_dim_value(e.value);
    } else {
      dim.set_dim_param(e.symbol);
    }
  }
}

void write_value(const ValueInfo& value, ::onnx::ValueInfoProto& out) {
  out.set_name(value.name);
  write_tensor_type(value, *out.mutable_type());
}

void write_attribute(const Attribute& attribute, ::onnx::AttributeProto& out) {
  out.set_name(attribute.name);
  if (const auto* integer = std::get_if<std::int64_t>(&attribute.value)) {
    out.set_type(::onnx::AttributeProto::INT);
    out.set_i(*integer);
  } else if (const auto* number = std::get_if<float>(&attribute.value)) {
    out.set_type(::onnx::AttributeProto::FLOAT);
    out.set_f(*number);
  } else if (const auto* text = std::get_if<std::string>(&attribute.value)) {
    out.set_type(::onnx::AttributeProto::STRING);
    out.set_s(*text);
  } else {
    out.set_type(::onnx::AttributeProto::INTS);
    for (const std::int64_t i : std::get<std::vector<std::int64_t>>(attribute.value)) out.add_ints(i);
  }
}

void write_node(const Graph& graph, const Node& node, ::onnx::NodeProto& out) {
  out.set_name(node.name);
  out.set_op_type(node.op);
  if (!node.domain.empty()) out.set_domain(node.domain);
  for (const Value v : node.inputs) out.add_input(v ? graph.info(v).name : std::string());
  for (const Value v : node.outputs) out.add_output(v ? graph.info(v).name : std::string());
  for (const Attribute& attribute : node.attributes) write_attribute(attribute, *out.add_attribute());
}

void add_external_entry(::onnx::TensorProto& out, const char* key, std::string value) {
  auto& entry = *out.add_external_data();
  entry.set_key(key);
  entry.set_value(std::move(value));
}

void write_initializer(const Graph& graph, const Initializer& initializer, ::onnx::TensorProto& out) {
  const ValueInfo& value = graph.info(initializer.value);
  const auto bytes = byte_count(initializer.shape, value.dtype);
  SLUICE_CHECK(bytes.has_value());
  out.set_name(value.name);
  out.set_data_type(onnx_element_type(value.dtype));
  for (const std::int64_t size : initializer.shape) out.add_dims(size);
  if (initializer.is_external()) {
    const Placement& place = initializer.placement;
    SLUICE_CHECK(!place.file.empty() && place.bytes == *bytes);
    out.set_data_location(::onnx::TensorProto::EXTERNAL);
    add_external_entry(out, "location", place.file);
    add_external_entry(out, "offset", std::to_string(place.offset));
    add_external_entry(out, "length", std::to_string(place.bytes));
  } else {
    const auto& data = std::get<std::vector<std::byte>>(initializer.data);
    SLUICE_CHECK(data.size() == *bytes);
    out.set_raw_data(data.data(), data.size());
  }
}

void write_graph(const Graph& graph, ::onnx::GraphProto& out) {
  out.set_name(graph.name());
  std::set<std::int32_t> ports;
  for (const Value v : graph.inputs()) {
    write_value(graph.info(v), *out.add_input());
    ports.insert(v.id);
  }
  for (const Value v : graph.outputs()) {
    write_value(graph.info(v), *out.add_output());
    ports.insert(v.id);
  }
  for (const Initializer& i : graph.initializers()) write_initializer(graph, i, *out.add_initializer());
  for (const Node& node : graph.nodes()) {
    write_node(graph, node, *out.add_node());
    for (const Value v : node.outputs) {
      if (v && !ports.contains(v.id) && graph.info(v).described) write_value(graph.info(v), *out.add_value_info());
    }
  }
}

}  // namespace

std::string serialize(const OnnxModel& model) {
  ::onnx::ModelProto proto;
  proto.set_ir_version(model.ir_version);
  proto.set_producer_name(model.producer);
  if (!model.producer_version.empty()) proto.set_producer_version(model.producer_version);
  for (const OpsetImport& opset : model.opsets) {
    auto& out = *proto.add_opset_import();
    out.set_domain(opset.domain);
    out.set_version(opset.version);
  }
  write_graph(model.graph, *proto.mutable_graph());
  const std::size_t bytes = proto.ByteSizeLong();
  if (bytes > kMaxModelBytes) {
    fail("model.onnx: the graph takes {} bytes, at most {} can be written", bytes, kMaxModelBytes);
  }
  std::string out;
  SLUICE_CHECK(proto.SerializeToString(&out));
  return out;
}

}  // namespace sluice

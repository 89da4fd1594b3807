#include <onnx-ml.pb.h>

#include <charconv>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/onnx_type.h"
#include "onnx/serialize.h"

namespace sluice {
namespace {

// Reads one graph. Every error names the source of the bytes and the value or node.
class GraphReader {
 public:
  GraphReader(const ::onnx::GraphProto& proto, std::string_view source)
      : proto_(proto), source_(source), graph_(proto.name()) {}

  Graph read() && {
    if (proto_.sparse_initializer_size() != 0) fail("{}: sparse initializers are not supported", source_);
    for (const auto& value : proto_.value_info()) described_.emplace(value.name(), &value);
    for (const auto& value : proto_.output()) described_.emplace(value.name(), &value);
    for (const auto& tensor : proto_.initializer()) read_initializer(tensor);
    for (const auto& value : proto_.input()) {
      if (graph_.find(value.name())) continue;  // an initializer that is listed as an input too
      ValueInfo info = value_info(value);
      graph_.add_input(new_name(std::move(info.name)), info.dtype, std::move(info.shape));
    }
    for (const auto& node : proto_.node()) read_node(node);
    for (const auto& value : proto_.output()) graph_.add_output(known(value.name(), "graph output"));
    return std::move(graph_);
  }

 private:
  DType dtype(std::int32_t element_type, const std::string& name) const {
    const auto found = dtype_of_onnx(element_type);
    if (!found) fail("{}: \"{}\" has element type {}, which is not supported", source_, name, element_type);
    return *found;
  }

  ValueInfo value_info(const ::onnx::ValueInfoProto& value) const {
    if (!value.type().has_tensor_type()) fail("{}: \"{}\" is not a tensor", source_, value.name());
    const auto& tensor = value.type().tensor_type();
    ValueInfo out{value.name(), dtype(tensor.elem_type(), value.name()), {}, tensor.has_shape()};
    for (const auto& dim : tensor.shape().dim()) {
      if (dim.has_dim_value() && dim.dim_value() < 0) fail("{}: \"{}\" has a negative extent", source_, value.name());
      out.shape.push_back(dim.has_dim_value() ? extent(dim.dim_value()) : extent(dim.dim_param()));
    }
    return out;
  }

  std::string new_name(std::string name) const {
    if (name.empty()) fail("{}: a value has no name", source_);
    if (graph_.find(name)) fail("{}: the name \"{}\" is given twice", source_, name);
    return name;
  }

  Value known(const std::string& name, std::string_view where) const {
    const auto value = graph_.find(name);
    if (!value) fail("{}: {} \"{}\" is no input, initializer or output of an earlier node", source_, where, name);
    return *value;
  }

  std::uint64_t number(const std::string& text, const std::string& key, const std::string& tensor) const {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      fail("{}: initializer \"{}\" has external {} \"{}\", expected a number", source_, tensor, key, text);
    }
    return value;
  }

  Placement placement(const ::onnx::TensorProto& tensor, std::uint64_t bytes) const {
    Placement out;
    out.bytes = bytes;
    for (const auto& entry : tensor.external_data()) {
      if (entry.key() == "location") out.file = entry.value();
      if (entry.key() == "offset") out.offset = number(entry.value(), "offset", tensor.name());
      if (entry.key() == "length") out.bytes = number(entry.value(), "length", tensor.name());
    }
    if (out.file.empty()) fail("{}: initializer \"{}\" names no data file", source_, tensor.name());
    if (out.bytes != bytes) {
      fail("{}: initializer \"{}\" has {} external bytes, expected {}", source_, tensor.name(), out.bytes, bytes);
    }
    return out;
  }

  void read_initializer(const ::onnx::TensorProto& tensor) {
    const DType type = dtype(tensor.data_type(), tensor.name());
    Shape shape(tensor.dims().begin(), tensor.dims().end());
    const auto bytes = byte_count(shape, type);
    if (!bytes) fail("{}: initializer \"{}\" has impossible shape {}", source_, tensor.name(), to_string(shape));
    const bool external = tensor.data_location() == ::onnx::TensorProto::EXTERNAL;
    if (!external && tensor.raw_data().size() != *bytes) {
      fail("{}: initializer \"{}\" holds {} raw bytes, expected {}", source_, tensor.name(), tensor.raw_data().size(),
           *bytes);
    }
    const auto* data = reinterpret_cast<const std::byte*>(tensor.raw_data().data());
    std::vector<std::byte> inline_bytes;
    if (!external) inline_bytes.assign(data, data + *bytes);
    graph_.add_initializer(new_name(tensor.name()), type, std::move(shape), std::move(inline_bytes));
    if (external) graph_.initializers().back().placement = placement(tensor, *bytes);
  }

  Attribute read_attribute(const ::onnx::AttributeProto& attribute, const std::string& node) const {
    switch (attribute.type()) {
      case ::onnx::AttributeProto::INT:
        return {attribute.name(), attribute.i()};
      case ::onnx::AttributeProto::FLOAT:
        return {attribute.name(), attribute.f()};
      case ::onnx::AttributeProto::STRING:
        return {attribute.name(), attribute.s()};
      case ::onnx::AttributeProto::INTS:
        return {attribute.name(), std::vector<std::int64_t>(attribute.ints().begin(), attribute.ints().end())};
      default:
        fail("{}: node \"{}\" has attribute \"{}\" of a type that is not supported ({})", source_, node,
             attribute.name(), ::onnx::AttributeProto::AttributeType_Name(attribute.type()));
    }
  }

  Value define(const std::string& name) {
    const auto found = described_.find(name);
    ValueInfo info{name, DType::f32, {}, false};
    if (found != described_.end()) info = value_info(*found->second);
    const Value value = graph_.add_value(new_name(name), info.dtype, std::move(info.shape));
    graph_.info(value).described = info.described;
    return value;
  }

  void read_node(const ::onnx::NodeProto& proto) {
    Node node{proto.name(), proto.domain() == "ai.onnx" ? "" : proto.domain(), proto.op_type(), {}, {}, {}};
    if (!node.name.empty() && !node_names_.insert(node.name).second) {
      fail("{}: two nodes are called \"{}\"", source_, node.name);
    }
    for (const std::string& input : proto.input()) {
      node.inputs.push_back(input.empty() ? Value{} : known(input, "an input of node " + node.name + ","));
    }
    for (const std::string& output : proto.output()) {
      node.outputs.push_back(output.empty() ? Value{} : define(output));
    }
    for (const auto& attribute : proto.attribute()) {
      node.attributes.push_back(read_attribute(attribute, node.name));
    }
    graph_.add_node(std::move(node));
  }

  const ::onnx::GraphProto& proto_;
  std::string_view source_;
  Graph graph_;
  std::map<std::string, const ::onnx::ValueInfoProto*> described_;
  std::set<std::string> node_names_;
};

}  // namespace

OnnxModel parse_model(std::string_view bytes, std::string_view source) {
  if (bytes.size() > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    fail("{}: {} bytes are more than an ONNX model can have", source, bytes.size());
  }
  ::onnx::ModelProto proto;
  if (!proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) || !proto.has_graph()) {
    fail("{}: not an ONNX model", source);
  }
  if (proto.functions_size() != 0) fail("{}: model functions are not supported", source);
  OnnxModel model;
  model.ir_version = proto.ir_version();
  model.producer = proto.producer_name();
  model.producer_version = proto.producer_version();
  for (const auto& opset : proto.opset_import()) {
    model.opsets.push_back({opset.domain() == "ai.onnx" ? "" : opset.domain(), opset.version()});
  }
  model.graph = GraphReader(proto.graph(), source).read();
  return model;
}

OnnxModel read_model(const std::filesystem::path& path) {
  const MappedFile file(path);
  const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  return parse_model(bytes, path.string());
}

}  // namespace sluice

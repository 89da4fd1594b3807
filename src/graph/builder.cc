#include "graph/builder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>

#include "base/error.h"
#include "base/float16.h"
#include "base/onnx_type.h"
#include "opset/operators.h"
#include "opset/shape_context.h"

namespace sluice {
namespace {

[[noreturn]] void broken(std::string_view node, const std::string& what) {
  throw std::logic_error(fmt::format("node {}: {}", node, what));
}

// The port at a position of a node: the last one repeats when it is variadic.
const PortSpec* port_at(std::span<const PortSpec> ports, std::size_t index) {
  if (index < ports.size()) return &ports[index];
  return !ports.empty() && ports.back().presence == Presence::variadic ? &ports.back() : nullptr;
}

bool has_kind(const AttributeValue& value, AttributeKind kind) {
  switch (kind) {
    case AttributeKind::integer:
      return std::holds_alternative<std::int64_t>(value);
    case AttributeKind::number:
      return std::holds_alternative<float>(value);
    case AttributeKind::text:
      return std::holds_alternative<std::string>(value);
    case AttributeKind::integers:
      return std::holds_alternative<std::vector<std::int64_t>>(value);
  }
  return false;
}

void check_attributes(const OperatorSpec& spec, const Node& node) {
  for (const Attribute& attribute : node.attributes) {
    const AttributeSpec* known = spec.attribute(attribute.name);
    if (known == nullptr) broken(node.name, fmt::format("{} has no attribute {}", spec.name, attribute.name));
    if (!has_kind(attribute.value, known->kind)) {
      broken(node.name, fmt::format("attribute {} of {} has another type", attribute.name, spec.name));
    }
  }
  for (const AttributeSpec& known : spec.attributes) {
    if (known.has_default == AttributeSpec::Default::required && node.attribute(known.name) == nullptr) {
      broken(node.name, fmt::format("attribute {} of {} is missing", known.name, spec.name));
    }
  }
}

using TypeBindings = std::map<std::string_view, DType>;

TypeBindings bind_inputs(const OperatorSpec& spec, const Node& node, const Graph& graph) {
  TypeBindings bound;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const PortSpec* port = port_at(spec.inputs, i);
    if (port == nullptr) broken(node.name, fmt::format("{} takes no input {}", spec.name, i));
    if (!node.inputs[i]) {
      if (port->presence != Presence::optional) broken(node.name, fmt::format("input {} is missing", port->name));
      continue;
    }
    const DType dtype = graph.info(node.inputs[i]).dtype;
    const auto [entry, fresh] = bound.emplace(port->type, dtype);
    if (entry->second != dtype || !spec.allowed(port->type).contains(dtype)) {
      broken(node.name, fmt::format("input {} ({}) is {}, which {} does not take here", i, port->name,
                                    dtype_name(dtype), port->type));
    }
  }
  for (std::size_t i = node.inputs.size(); i < spec.inputs.size(); ++i) {
    if (spec.inputs[i].presence == Presence::required) {
      broken(node.name, fmt::format("input {} is missing", spec.inputs[i].name));
    }
  }
  return bound;
}

std::optional<DType> only_type(TypeSet set) {
  for (const DType dtype : {DType::f32, DType::i32, DType::i64}) {
    if (set == TypeSet{dtype}) return dtype;
  }
  return std::nullopt;
}

DType output_dtype(const OperatorSpec& spec, const Node& node, const TypeBindings& bound, const PortSpec& port) {
  if (const auto found = bound.find(port.type); found != bound.end()) return found->second;
  if (const auto only = only_type(spec.allowed(port.type))) return *only;
  const AttributeValue* to = node.attribute("to");
  const auto* number = to == nullptr ? nullptr : std::get_if<std::int64_t>(to);
  const auto dtype = number == nullptr ? std::nullopt : dtype_of_onnx(static_cast<std::int32_t>(*number));
  if (!dtype) broken(node.name, fmt::format("the type of output {} is not known", port.name));
  return *dtype;
}

}  // namespace

// The node being emitted, as shape functions see it.
class GraphBuilder::NodeShapes final : public ShapeContext {
 public:
  NodeShapes(const GraphBuilder& builder, const OperatorSpec& spec, const Node& node, std::vector<bool> wanted)
      : builder_(builder), spec_(spec), node_(node), wanted_(std::move(wanted)), shapes(wanted_.size()) {}

  std::size_t input_count() const override { return node_.inputs.size(); }
  std::size_t output_count() const override { return wanted_.size(); }
  bool has_input(std::size_t index) const override { return static_cast<bool>(node_.input(index)); }
  bool has_output(std::size_t index) const override { return index < wanted_.size() && wanted_[index]; }
  const Extents& input_shape(std::size_t index) const override { return builder_.shape(node_.inputs.at(index)); }
  std::optional<Extents> input_contents(std::size_t index) const override {
    const auto found = builder_.contents_.find(node_.inputs.at(index).id);
    return found == builder_.contents_.end() ? std::nullopt : std::optional(found->second);
  }
  std::int64_t integer(std::string_view name) const override { return get<std::int64_t>(name); }
  std::string text(std::string_view name) const override { return get<std::string>(name); }
  std::vector<std::int64_t> integers(std::string_view name) const override {
    return get<std::vector<std::int64_t>>(name);
  }
  bool has_attribute(std::string_view name) const override { return node_.attribute(name) != nullptr; }
  void set_output_shape(std::size_t index, Extents shape) override {
    if (index < shapes.size()) shapes[index] = std::move(shape);
  }
  void set_output_contents(std::size_t index, Extents values) override { contents.emplace(index, std::move(values)); }

 private:
  template <typename T>
  T get(std::string_view name) const {
    if (const AttributeValue* value = node_.attribute(name)) return std::get<T>(*value);
    const AttributeSpec* known = spec_.attribute(name);
    if (known == nullptr || known->has_default != AttributeSpec::Default::value) fail("attribute {} is missing", name);
    if constexpr (std::is_same_v<T, std::int64_t>) return known->integer;
    if constexpr (std::is_same_v<T, std::string>) return std::string(known->text);
    fail("attribute {} has no default", name);
  }

  const GraphBuilder& builder_;
  const OperatorSpec& spec_;
  const Node& node_;
  std::vector<bool> wanted_;

 public:
  std::vector<std::optional<Extents>> shapes;
  std::map<std::size_t, Extents> contents;
};

GraphBuilder::Scope::Scope(GraphBuilder& builder, std::string_view name)
    : builder_(builder), outer_(builder.scope_.size()) {
  builder.scope_ += fmt::format("/{}", name);
}

GraphBuilder::Scope::~Scope() { builder_.scope_.resize(outer_); }

std::string GraphBuilder::path(std::string_view label, std::string_view op) const {
  return label.empty() ? fmt::format("{}/{}", scope_, op) : fmt::format("{}/{}/{}", scope_, label, op);
}

Value GraphBuilder::emit(const OperatorSpec& spec, std::string_view label, std::vector<Value> inputs,
                         std::vector<Attribute> attributes) {
  return emit(spec, label, std::move(inputs), std::move(attributes), {true}).front();
}

std::vector<Value> GraphBuilder::emit(const OperatorSpec& spec, std::string_view label, std::vector<Value> inputs,
                                      std::vector<Attribute> attributes, std::vector<bool> wanted) {
  while (!inputs.empty() && !inputs.back()) inputs.pop_back();
  Node node{path(label, spec.name), std::string(spec.domain), std::string(spec.name), std::move(inputs), {},
            std::move(attributes)};
  check_attributes(spec, node);
  const TypeBindings bound = bind_inputs(spec, node, graph_);
  NodeShapes shapes(*this, spec, node, wanted);
  try {
    if (spec.infer != nullptr) {
      spec.infer(shapes);
    } else {
      shapes.set_output_shape(0, shape(node.inputs.at(0)));
    }
  } catch (const Error& error) {
    broken(node.name, error.what());
  }
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const PortSpec* port = port_at(spec.outputs, i);
    if (port == nullptr) broken(node.name, fmt::format("{} has no output {}", spec.name, i));
    if (!wanted[i]) {
      if (port->presence == Presence::required) broken(node.name, fmt::format("output {} is required", port->name));
      node.outputs.push_back({});
      continue;
    }
    if (!shapes.shapes[i]) broken(node.name, fmt::format("output {} got no shape", port->name));
    node.outputs.push_back(graph_.add_value(fmt::format("{}.{}", node.name, i), output_dtype(spec, node, bound, *port),
                                            *shapes.shapes[i]));
  }
  for (auto& [index, values] : shapes.contents) contents_[node.outputs.at(index).id] = std::move(values);
  std::vector<Value> outputs = node.outputs;
  graph_.add_node(std::move(node));
  return outputs;
}

Value GraphBuilder::inline_constant(std::string name, DType dtype, Shape shape, std::vector<std::byte> bytes) {
  if (const auto known = graph_.find(name)) return *known;
  return graph_.add_initializer(std::move(name), dtype, std::move(shape), std::move(bytes));
}

Value GraphBuilder::constant(const std::vector<std::int64_t>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(std::int64_t));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  const Value value = inline_constant(fmt::format("/constants/i64/[{}]", fmt::join(values, ",")), DType::i64,
                                      {std::ssize(values)}, std::move(bytes));
  Extents contents;
  for (const std::int64_t v : values) contents.push_back(extent(v));
  contents_[value.id] = std::move(contents);
  return value;
}

Value GraphBuilder::scalar(std::int64_t number) {
  std::vector<std::byte> bytes(sizeof(number));
  std::memcpy(bytes.data(), &number, sizeof(number));
  return inline_constant(fmt::format("/constants/i64/{}", number), DType::i64, {}, std::move(bytes));
}

Value GraphBuilder::filled(DType dtype, std::int64_t size, double number) {
  const auto narrow = static_cast<float>(number);
  const float f32 = narrow;
  const std::uint16_t half = dtype == DType::f16 ? to_f16(narrow).bits : to_bf16(narrow).bits;
  const std::size_t width = dtype_bytes(dtype);
  SLUICE_CHECK(is_float_weight(dtype) && size > 0);
  std::vector<std::byte> bytes(static_cast<std::size_t>(size) * width);
  for (std::size_t i = 0; i < bytes.size(); i += width) {
    if (dtype == DType::f32) {
      std::memcpy(&bytes[i], &f32, width);
    } else {
      std::memcpy(&bytes[i], &half, width);
    }
  }
  return inline_constant(fmt::format("/constants/{}/{}x{}", dtype_name(dtype), size, number), dtype, {size},
                         std::move(bytes));
}

Value GraphBuilder::cast(std::string_view label, Value x, DType to) {
  if (dtype(x) == to) return x;
  return emit(kCast, label, {x}, {{"to", std::int64_t{onnx_element_type(to)}}});
}

Value GraphBuilder::reshape(std::string_view label, Value x, const std::vector<std::int64_t>& target) {
  return emit(kReshape, label, {x, constant(target)});
}

Value GraphBuilder::transpose(std::string_view label, Value x, const std::vector<std::int64_t>& order) {
  return emit(kTranspose, label, {x}, {{"perm", order}});
}

std::vector<Value> GraphBuilder::split(std::string_view label, Value x, const std::vector<std::int64_t>& sizes) {
  return emit(kSplit, label, {x, constant(sizes)}, {{"axis", std::int64_t{-1}}}, std::vector<bool>(sizes.size(), true));
}

}  // namespace sluice

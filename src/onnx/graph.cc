#include "onnx/graph.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace sluice {

const AttributeValue* Node::attribute(std::string_view attribute_name) const {
  const auto found = std::ranges::find(attributes, attribute_name, &Attribute::name);
  return found == attributes.end() ? nullptr : &found->value;
}

std::string_view name_of(Transform transform) noexcept {
  switch (transform) {
    case Transform::interleave_gate_up:
      return "interleave";
    case Transform::neg_exp:
      return "neg_exp";
  }
  return "";
}

Value Graph::add_value(std::string name, DType dtype, Extents shape) {
  const Value value{static_cast<std::int32_t>(values_.size())};
  SLUICE_CHECK(!name.empty());
  SLUICE_CHECK(by_name_.emplace(name, value).second);
  values_.push_back({std::move(name), dtype, std::move(shape)});
  defined_.push_back(false);
  return value;
}

Value Graph::add_input(std::string name, DType dtype, Extents shape) {
  const Value value = add_value(std::move(name), dtype, std::move(shape));
  defined_[static_cast<std::size_t>(value.id)] = true;
  inputs_.push_back(value);
  return value;
}

Value Graph::add_initializer(std::string name, DType dtype, Shape shape, decltype(Initializer::data) data) {
  Extents extents;
  for (const std::int64_t size : shape) extents.push_back(extent(size));
  const Value value = add_value(std::move(name), dtype, std::move(extents));
  defined_[static_cast<std::size_t>(value.id)] = true;
  initializers_.push_back({value, std::move(shape), std::move(data), {}});
  return value;
}

void Graph::add_node(Node node) {
  SLUICE_CHECK(node.name.empty() || node_names_.insert(node.name).second);
  for (const Value input : node.inputs) SLUICE_CHECK(!input || defined_.at(static_cast<std::size_t>(input.id)));
  for (const Value output : node.outputs) {
    if (!output) continue;
    SLUICE_CHECK(!defined_.at(static_cast<std::size_t>(output.id)));
    defined_[static_cast<std::size_t>(output.id)] = true;
  }
  nodes_.push_back(std::move(node));
}

void Graph::add_output(Value value) {
  SLUICE_CHECK(value && defined_.at(static_cast<std::size_t>(value.id)));
  outputs_.push_back(value);
}

void Graph::rename(Value value, std::string name) {
  SLUICE_CHECK(by_name_.emplace(name, value).second);
  by_name_.erase(info(value).name);
  info(value).name = std::move(name);
}

const ValueInfo& Graph::info(Value value) const {
  SLUICE_CHECK(value);
  return values_.at(static_cast<std::size_t>(value.id));
}

ValueInfo& Graph::info(Value value) { return const_cast<ValueInfo&>(std::as_const(*this).info(value)); }

std::optional<Value> Graph::find(std::string_view value_name) const {
  const auto found = by_name_.find(value_name);
  return found == by_name_.end() ? std::nullopt : std::optional(found->second);
}

const Initializer* Graph::initializer(Value value) const {
  const auto found = std::ranges::find(initializers_, value, &Initializer::value);
  return found == initializers_.end() ? nullptr : &*found;
}

}  // namespace sluice

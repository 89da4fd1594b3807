// A small, generic graph: values, nodes and initializers. It knows nothing of models, files or runtimes; opset/ says
// what a node may be, graph/ composes nodes into a decoder, serialize.h writes and reads model.onnx.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/extent.h"
#include "base/shape.h"

namespace sluice {

// A handle on a tensor of one Graph. A default Value is the absent optional input or output.
struct Value {
  std::int32_t id = -1;
  explicit operator bool() const { return id >= 0; }
  bool operator==(const Value&) const = default;
};

struct ValueInfo {
  std::string name;
  DType dtype = DType::f32;
  Extents shape;
  bool described = true;  // false: a parsed model does not say the dtype and shape of this intermediate value
};

using AttributeValue = std::variant<std::int64_t, float, std::string, std::vector<std::int64_t>>;

struct Attribute {
  std::string name;
  AttributeValue value;
  bool operator==(const Attribute&) const = default;
};

// Trailing absent inputs and outputs are not listed; absent ones in between are.
struct Node {
  std::string name;
  std::string domain;  // "" is ai.onnx
  std::string op;
  std::vector<Value> inputs;
  std::vector<Value> outputs;
  std::vector<Attribute> attributes;

  // Null when the node has no attribute of that name.
  const AttributeValue* attribute(std::string_view attribute_name) const;
  Value input(std::size_t index) const { return index < inputs.size() ? inputs[index] : Value{}; }
  Value output(std::size_t index) const { return index < outputs.size() ? outputs[index] : Value{}; }
};

// The closed list of what may happen to a weight's elements between checkpoint and data file; executed in order, on the
// exactly widened values, before the one rounding to the initializer's dtype.
enum class Transform {
  interleave_gate_up,  // [E, 2I, H] rows g0..gI-1, u0..uI-1 of each expert become g0, u0, g1, u1, ...
  neg_exp,             // x -> -exp(x), computed in double
};

std::string_view name_of(Transform) noexcept;  // "interleave", "neg_exp"

// The bytes are weights of the checkpoint: the named ones (canonical names of architecture/weight_table.h), one after
// the other along their first axis, transformed, rounded to nearest even to the initializer's dtype, row-major,
// little-endian. With no transform and a weight stored in that dtype the bytes are the checkpoint's own.
struct WeightRecipe {
  std::vector<std::string> weights;
  std::vector<Transform> transforms;
};

// The bytes are computed: `fill` writes rows [first_row, first_row + out.size() / row bytes) of the first axis, may be
// called from several threads, for any cut, and always writes the same bytes.
struct TableRecipe {
  std::string name;  // of the table, for manifests
  std::function<void(std::int64_t first_row, std::span<std::byte> out)> fill;
};

// Where a data file holds an initializer. `file` is relative to the model.
struct Placement {
  std::string file;
  std::uint64_t offset = 0;  // bytes
  std::uint64_t bytes = 0;
  bool operator==(const Placement&) const = default;
};

// A constant of the graph, in the model file itself (inline) or in a data file (external).
struct Initializer {
  Value value;
  Shape shape;
  std::variant<std::vector<std::byte>, WeightRecipe, TableRecipe> data;
  Placement placement;  // external only; whoever writes the data file fills it in before the model is serialized

  bool is_external() const { return data.index() != 0 || !placement.file.empty(); }
  const WeightRecipe* weight_recipe() const { return std::get_if<WeightRecipe>(&data); }
  const TableRecipe* table_recipe() const { return std::get_if<TableRecipe>(&data); }
};

class Graph {
 public:
  explicit Graph(std::string name = "main_graph") : name_(std::move(name)) {}

  // Names are unique in a graph, whatever they name.
  Value add_value(std::string name, DType dtype, Extents shape);
  Value add_input(std::string name, DType dtype, Extents shape);
  Value add_initializer(std::string name, DType dtype, Shape shape, decltype(Initializer::data) data);
  // Every input must be defined already: nodes stay in topological order. A name may be empty, else it is unique.
  void add_node(Node node);
  void add_output(Value value);
  void rename(Value value, std::string name);

  const std::string& name() const { return name_; }
  const ValueInfo& info(Value value) const;
  ValueInfo& info(Value value);
  std::optional<Value> find(std::string_view value_name) const;
  const Initializer* initializer(Value value) const;

  std::span<const Node> nodes() const { return nodes_; }
  std::span<const Value> inputs() const { return inputs_; }
  std::span<const Value> outputs() const { return outputs_; }
  // In the order they were added, which is the order of a data file.
  std::span<const Initializer> initializers() const { return initializers_; }
  std::span<Initializer> initializers() { return initializers_; }
  std::size_t value_count() const { return values_.size(); }

 private:
  std::string name_;
  std::vector<ValueInfo> values_;
  std::vector<Node> nodes_;
  std::vector<Value> inputs_;
  std::vector<Value> outputs_;
  std::vector<Initializer> initializers_;
  std::vector<bool> defined_;  // [values]: an input, an initializer, or some node's output
  std::map<std::string, Value, std::less<>> by_name_;
  std::set<std::string, std::less<>> node_names_;
};

}  // namespace sluice

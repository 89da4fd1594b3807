// Adds nodes to a graph, each checked against its operator's contract; the types and shapes of outputs follow from it.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "onnx/graph.h"
#include "opset/operator.h"

namespace sluice {

// Names of nodes and values are paths: "/layers.3/attn/q_norm/RMSNormalization". A contract that a node breaks is a bug
// of the block that emits it: std::logic_error naming node, input, expected and found.
class GraphBuilder {
 public:
  explicit GraphBuilder(Graph& graph) : graph_(graph) {}

  // Until the scope ends, labels are taken to be inside `name`.
  class Scope {
   public:
    Scope(GraphBuilder& builder, std::string_view name);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    GraphBuilder& builder_;
    std::size_t outer_;
  };
  [[nodiscard]] Scope scope(std::string_view name) { return {*this, name}; }

  // A node with one output. `label` tells nodes of one operator in one scope apart.
  Value emit(const OperatorSpec& spec, std::string_view label, std::vector<Value> inputs,
             std::vector<Attribute> attributes = {});
  // A node whose output i is listed when wanted[i]; the others come back absent.
  std::vector<Value> emit(const OperatorSpec& spec, std::string_view label, std::vector<Value> inputs,
                          std::vector<Attribute> attributes, std::vector<bool> wanted);

  // Inline constants, one of each content.
  Value constant(const std::vector<std::int64_t>& values);     // [n] i64
  Value scalar(std::int64_t value);                            // [] i64
  Value filled(DType dtype, std::int64_t size, double value);  // [size], every element rounded from `value`

  // Shorthands for what has no arithmetic in it.
  Value cast(std::string_view label, Value x, DType dtype);  // x itself when it has the dtype
  Value reshape(std::string_view label, Value x, const std::vector<std::int64_t>& shape);
  Value transpose(std::string_view label, Value x, const std::vector<std::int64_t>& order);
  std::vector<Value> split(std::string_view label, Value x, const std::vector<std::int64_t>& sizes);  // last axis

  Graph& graph() { return graph_; }
  DType dtype(Value value) const { return graph_.info(value).dtype; }
  const Extents& shape(Value value) const { return graph_.info(value).shape; }

 private:
  class NodeShapes;
  std::string path(std::string_view label, std::string_view op) const;
  Value inline_constant(std::string name, DType dtype, Shape shape, std::vector<std::byte> bytes);

  Graph& graph_;
  std::string scope_;
  std::map<std::int32_t, Extents> contents_;  // by value: the elements of small integer tensors
};

}  // namespace sluice

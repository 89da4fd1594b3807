// model.onnx and back: the only user of protobuf. The bytes depend on the graph alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "onnx/graph.h"

namespace sluice {

struct OpsetImport {
  std::string domain;  // "" is ai.onnx
  std::int64_t version = 0;
  bool operator==(const OpsetImport&) const = default;
};

struct OnnxModel {
  std::int64_t ir_version = 10;
  std::vector<OpsetImport> opsets;
  std::string producer = "sluice";
  std::string producer_version;
  Graph graph;
};

// Every intermediate value is described in value_info; initializers are inline bytes or name their place in a data file
// (an external one without a placement is a bug). Throws Error when the model file would pass 2 GiB.
std::string serialize(const OnnxModel& model);

// Reads what serialize wrote and, as far as the graph type goes, what others write: op histograms, nodes, initializers
// with their placements. `source` names the bytes in errors. Refused by name: subgraphs, functions, sparse and string
// tensors, element types and attribute types the graph type does not have, nodes out of order.
OnnxModel parse_model(std::string_view bytes, std::string_view source);
OnnxModel read_model(const std::filesystem::path& path);

}  // namespace sluice

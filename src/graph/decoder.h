// A config and a plan -> the decoder graph and what a runtime must know to bind it.
#pragma once

#include <functional>
#include <string_view>

#include "architecture/hybrid_config.h"
#include "onnx/serialize.h"
#include "package/manifest.h"
#include "target/plan.h"

namespace sluice {

// The dtype in which the checkpoint holds a canonical weight (CanonicalWeight::dtype()).
using WeightDTypes = std::function<DType(std::string_view canonical)>;

struct DecoderGraph {
  // Its initializers() are in data-file order: tables, embedding, layers, norm, head. For each external one:
  //   - value:    model.graph.info(value) has its name and stored dtype, `shape` its extents after the transforms;
  //   - bytes:    byte_count(shape, dtype); made as WeightRecipe or TableRecipe (onnx/graph.h) say;
  //   - placement: empty; export/ sets {file, offset, bytes}, then serialize(model) writes model.onnx.
  // A weight of the checkpoint appears in at most one initializer (a tied head is one initializer used twice).
  OnnxModel model;
  GraphInfo info;  // role "decoder", file "model.onnx", ports and states in declaration order
};

// Every canonical weight of the kept layers is used exactly once. A graph that does not fit opset/ is a bug and throws
// std::logic_error; what the target cannot run was refused by resolve().
DecoderGraph build_decoder(const HybridConfig& config, const ExportPlan& plan, const WeightDTypes& source_dtype);

}  // namespace sluice

// What every block of a layer is given: the config, the weights of this layer by short names, and threads.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <string_view>

#include "architecture/hybrid_config.h"
#include "base/executor.h"
#include "reference/rows.h"
#include "weights/weight_source.h"

namespace sluice::reference {

// Sees intermediate results by name; N is the layer, n the tokens of the call:
//   hidden.embed, hidden.layerN, hidden.final_norm, mixer_out.layerN, mlp_out.layerN   [n, hidden]
//   router.layerN.logits [n, experts]   router.layerN.topk_weight, .topk_index [n, experts_per_token]
template <typename T>
using Probe = std::function<void(std::string_view name, const Rows<T>& rows)>;

template <typename T>
struct LayerContext {
  const HybridConfig& config;
  const WeightSource& weights;
  Executor& executor;
  const Probe<T>& probe;  // may be empty
  std::int64_t layer = 0;
  double qk_norm_epsilon = 1e-6;

  const CanonicalWeight& weight(std::string_view name) const {
    return weights.at(fmt::format("layers.{}.{}", layer, name));
  }
  const CanonicalWeight* find(std::string_view name) const {
    return weights.find(fmt::format("layers.{}.{}", layer, name));
  }
  void show(std::string_view what, const Rows<T>& rows) const {
    if (probe) probe(what, rows);
  }
};

}  // namespace sluice::reference

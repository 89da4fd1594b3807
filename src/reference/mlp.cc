#include "reference/mlp.h"

#include <algorithm>
#include <numeric>

#include "reference/functions.h"
#include "reference/linear.h"

namespace sluice::reference {
namespace {

template <typename T>
struct Routing {
  std::int64_t rank_count = 0;        // experts a token uses
  std::vector<std::int64_t> experts;  // [tokens, rank_count] best first
  Rows<T> weights;                    // [tokens, rank_count]
};

template <typename T>
Routing<T> route(const LayerContext<T>& layer, const Rows<T>& x) {
  const MoeConfig& moe = *layer.config.moe;
  Rows<T> probabilities = linear(x, layer.weight("moe.router"), layer.executor);
  layer.show(fmt::format("router.layer{}.logits", layer.layer), probabilities);
  Routing<T> routing{moe.experts_per_token, {}, Rows<T>(x.rows(), moe.experts_per_token)};
  std::vector<std::int64_t> order(static_cast<std::size_t>(moe.experts));
  Rows<T> indices(x.rows(), moe.experts_per_token);
  for (std::int64_t t = 0; t < x.rows(); ++t) {
    const std::span<T> p = probabilities[t];
    softmax(p);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) { return p[a] > p[b]; });
    T sum = 0;
    for (std::int64_t rank = 0; rank < moe.experts_per_token; ++rank) {
      const std::int64_t expert = order[static_cast<std::size_t>(rank)];
      routing.experts.push_back(expert);
      indices[t][rank] = static_cast<T>(expert);
      sum += routing.weights[t][rank] = p[expert];
    }
    if (moe.normalize_top_k) {
      for (T& weight : routing.weights[t]) weight /= sum;
    }
  }
  layer.show(fmt::format("router.layer{}.topk_weight", layer.layer), routing.weights);
  layer.show(fmt::format("router.layer{}.topk_index", layer.layer), indices);
  return routing;
}

// Runs one expert on the tokens that chose it; their results go to the rows [token * k + rank] of `results`.
template <typename T>
void run_expert(const LayerContext<T>& layer, std::int64_t expert, const Routing<T>& routing, const Rows<T>& x,
                Rows<T>& results) {
  std::vector<std::int64_t> slots;
  Rows<T> inputs(0, x.cols());
  for (std::size_t slot = 0; slot < routing.experts.size(); ++slot) {
    if (routing.experts[slot] != expert) continue;
    slots.push_back(static_cast<std::int64_t>(slot));
    Rows<T> row(1, x.cols());
    std::ranges::copy(x[slots.back() / routing.rank_count], row[0].begin());
    inputs.append(row);
  }
  if (slots.empty()) return;
  const std::int64_t width = layer.config.moe->intermediate;
  const Rows<T> gate_up =
      linear(inputs, matrix(layer.weight("moe.gate_up"), expert), layer.executor);  // [n, gate | up]
  Rows<T> inner(inputs.rows(), width);
  for (std::int64_t t = 0; t < inner.rows(); ++t) {
    for (std::int64_t i = 0; i < width; ++i) {
      inner[t][i] = activate(layer.config.activation, gate_up[t][i]) * gate_up[t][width + i];
    }
  }
  const Rows<T> out = linear(inner, matrix(layer.weight("moe.down"), expert), layer.executor);
  for (std::int64_t t = 0; t < out.rows(); ++t) {
    std::ranges::copy(out[t], results[slots[static_cast<std::size_t>(t)]].begin());
  }
}

}  // namespace

template <typename T>
Rows<T> gated_mlp(const LayerContext<T>& layer, std::string_view prefix, const Rows<T>& x) {
  const auto weight = [&](const char* name) -> const CanonicalWeight& {
    return layer.weight(fmt::format("{}.{}", prefix, name));
  };
  Rows<T> inner = linear(x, weight("gate"), layer.executor);
  const Rows<T> up = linear(x, weight("up"), layer.executor);
  for (std::size_t i = 0; i < inner.values().size(); ++i) {
    inner.values()[i] = activate(layer.config.activation, inner.values()[i]) * up.values()[i];
  }
  return linear(inner, weight("down"), layer.executor);
}

template <typename T>
Rows<T> mixture_of_experts(const LayerContext<T>& layer, const Rows<T>& x) {
  const Routing<T> routing = route(layer, x);
  Rows<T> results(x.rows() * routing.rank_count, x.cols());
  for (std::int64_t expert = 0; expert < layer.config.moe->experts; ++expert) {
    run_expert(layer, expert, routing, x, results);
  }
  Rows<T> y(x.rows(), x.cols());
  for (std::int64_t t = 0; t < x.rows(); ++t) {
    for (std::int64_t rank = 0; rank < routing.rank_count; ++rank) {
      const std::span<const T> result = results[t * routing.rank_count + rank];
      for (std::size_t i = 0; i < result.size(); ++i) y[t][i] += routing.weights[t][rank] * result[i];
    }
  }
  if (layer.config.moe->shared_intermediate > 0) {
    const Rows<T> gate = linear(x, layer.weight("moe.shared_gate"), layer.executor);  // [tokens, 1]
    const Rows<T> shared = gated_mlp(layer, "moe.shared", x);
    for (std::int64_t t = 0; t < x.rows(); ++t) {
      for (std::size_t i = 0; i < y[t].size(); ++i) y[t][i] += sigmoid(gate[t][0]) * shared[t][i];
    }
  }
  return y;
}

template Rows<float> gated_mlp(const LayerContext<float>&, std::string_view, const Rows<float>&);
template Rows<double> gated_mlp(const LayerContext<double>&, std::string_view, const Rows<double>&);
template Rows<float> mixture_of_experts(const LayerContext<float>&, const Rows<float>&);
template Rows<double> mixture_of_experts(const LayerContext<double>&, const Rows<double>&);

}  // namespace sluice::reference

#include "reference/model.h"

#include <algorithm>

#include "reference/attention.h"
#include "reference/delta_net.h"
#include "reference/functions.h"
#include "reference/linear.h"
#include "reference/mlp.h"

namespace sluice::reference {
namespace {

constexpr std::size_t kPiece = 256;  // tokens at a time: bounds the activations of long prompts

}  // namespace

template <typename T>
Model<T>::Model(const HybridConfig& config, const WeightSource& weights, Executor& executor, Options options)
    : config_(config), weights_(weights), executor_(executor), options_(options), layers_(config.layers) {
  if (options.num_layers >= 0) {
    if (options.num_layers > config.layers) {
      fail("the reference cannot run {} layers: the checkpoint has {}", options.num_layers, config.layers);
    }
    layers_ = options.num_layers;
  }
}

template <typename T>
State<T> Model<T>::start() const {
  State<T> state;
  for (std::int64_t layer = 0; layer < layers_; ++layer) {
    LayerState<T> s;
    if (config_.is_linear(layer)) {
      s.conv = Rows<T>(config_.conv_kernel - 1, config_.conv_dim());
      s.recurrent.resize(
          static_cast<std::size_t>(config_.linear_v_heads * config_.linear_k_dim * config_.linear_v_dim));
    }
    state.layers.push_back(std::move(s));
  }
  return state;
}

template <typename T>
Rows<T> Model<T>::embed(std::span<const std::int64_t> ids) const {
  const CanonicalWeight& table = weights_.at("embed_tokens");
  Rows<T> x(static_cast<std::int64_t>(ids.size()), config_.hidden);
  for (std::int64_t t = 0; t < x.rows(); ++t) {
    read_elements<T>(table, static_cast<std::uint64_t>(ids[static_cast<std::size_t>(t)] * config_.hidden), x[t]);
  }
  return x;
}

template <typename T>
Rows<T> Model<T>::normalized(const Rows<T>& x, const CanonicalWeight& norm) const {
  const std::vector<T> weight = read_all<T>(norm);
  Rows<T> y = x;
  for (std::int64_t t = 0; t < y.rows(); ++t) rms_norm<T>(y[t], weight, config_.rms_eps);
  return y;
}

template <typename T>
void Model<T>::run_layer(std::int64_t index, Rows<T>& x, State<T>& state, const Probe<T>& probe) const {
  const LayerContext<T> layer{config_, weights_, executor_, probe, index, options_.qk_norm_epsilon};
  LayerState<T>& own = state.layers[static_cast<std::size_t>(index)];

  const Rows<T> mixer_in = normalized(x, layer.weight("input_norm"));
  const Rows<T> mixed = config_.is_linear(index) ? gated_delta_net(layer, mixer_in, own)
                                                 : gated_attention(layer, mixer_in, state.tokens, own);
  x.add(mixed);

  const Rows<T> mlp_in = normalized(x, layer.weight("post_norm"));
  const Rows<T> fed = config_.is_moe(index) ? mixture_of_experts(layer, mlp_in) : gated_mlp(layer, "mlp", mlp_in);
  x.add(fed);

  layer.show(fmt::format("mixer_out.layer{}", index), mixed);
  layer.show(fmt::format("mlp_out.layer{}", index), fed);
  layer.show(fmt::format("hidden.layer{}", index), x);
}

template <typename T>
Rows<T> Model<T>::forward_piece(std::span<const std::int64_t> ids, State<T>& state, const Probe<T>& probe) const {
  Rows<T> x = embed(ids);
  if (probe) probe("hidden.embed", x);
  for (std::int64_t layer = 0; layer < layers_; ++layer) run_layer(layer, x, state, probe);
  state.tokens += x.rows();
  x = normalized(x, weights_.at("norm"));
  if (probe) probe("hidden.final_norm", x);
  return x;
}

template <typename T>
Rows<T> Model<T>::forward(std::span<const std::int64_t> ids, State<T>& state, const Probe<T>& probe) const {
  SLUICE_CHECK(static_cast<std::int64_t>(state.layers.size()) == layers_);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= config_.vocab) {
      fail("token {} (number {} of the input) is outside the vocabulary of {}", ids[i], i, config_.vocab);
    }
  }
  Rows<T> hidden(0, config_.hidden);
  for (; !ids.empty(); ids = ids.subspan(std::min(kPiece, ids.size()))) {
    hidden.append(forward_piece(ids.first(std::min(kPiece, ids.size())), state, probe));
  }
  return hidden;
}

template <typename T>
Rows<T> Model<T>::head(const Rows<T>& hidden) const {
  return linear(hidden, weights_.at(config_.tied ? "embed_tokens" : "lm_head"), executor_);
}

template class Model<float>;
template class Model<double>;

}  // namespace sluice::reference

#include "reference/delta_net.h"

#include <cmath>

#include "reference/functions.h"
#include "reference/linear.h"

namespace sluice::reference {
namespace {

// Causal depthwise convolution and activation: y[t] = act(sum_j w[j] * x[t - (K-1) + j]), the last tap on the token
// itself.
template <typename T>
Rows<T> causal_conv(const LayerContext<T>& layer, const Rows<T>& x, Rows<T>& last_inputs) {
  const std::int64_t channels = layer.config.conv_dim();
  const std::int64_t kernel = layer.config.conv_kernel;
  const std::vector<T> w = read_all<T>(layer.weight("linear.conv"));  // [channels, 1, kernel]
  Rows<T> inputs = last_inputs;                                       // [kernel - 1 + tokens, channels]
  inputs.append(x);
  Rows<T> y(x.rows(), channels);
  for (std::int64_t t = 0; t < x.rows(); ++t) {
    for (std::int64_t c = 0; c < channels; ++c) {
      T sum = 0;
      for (std::int64_t j = 0; j < kernel; ++j) sum += w[static_cast<std::size_t>(c * kernel + j)] * inputs[t + j][c];
      y[t][c] = activate(layer.config.activation, sum);
    }
  }
  for (std::int64_t j = 0; j < kernel - 1; ++j) std::ranges::copy(inputs[x.rows() + j], last_inputs[j].begin());
  return y;
}

// One head's state S [k_dim, v_dim] moves by one token:
//   S <- decay S;   S <- S + k (beta (v - S^T k))^T;   o = S^T q
template <typename T>
struct DeltaHead {
  std::span<T> s;
  std::int64_t k_dim, v_dim;
  std::vector<T> delta = std::vector<T>(static_cast<std::size_t>(v_dim));

  void step(std::span<const T> q, std::span<const T> k, std::span<const T> v, T decay, T beta, std::span<T> o) {
    for (T& value : s) value *= decay;
    read(k, delta);
    for (std::int64_t j = 0; j < v_dim; ++j) delta[j] = beta * (v[j] - delta[j]);
    for (std::int64_t i = 0; i < k_dim; ++i) {
      for (std::int64_t j = 0; j < v_dim; ++j) s[i * v_dim + j] += k[i] * delta[j];
    }
    read(q, o);
  }

  // out = S^T x
  void read(std::span<const T> x, std::span<T> out) const {
    std::ranges::fill(out, T(0));
    for (std::int64_t i = 0; i < k_dim; ++i) {
      for (std::int64_t j = 0; j < v_dim; ++j) out[j] += x[i] * s[i * v_dim + j];
    }
  }
};

// The gates of every token and value head: what S is multiplied by, and how much of the delta is written.
template <typename T>
struct Gates {
  Rows<T> decay;  // [tokens, v_heads] exp(-exp(A_log) * softplus(a + dt_bias))
  Rows<T> beta;   // [tokens, v_heads] sigmoid(b)
};

template <typename T>
Gates<T> gates(const LayerContext<T>& layer, const Rows<T>& x) {
  const std::vector<T> a_log = read_all<T>(layer.weight("linear.A_log"));
  const std::vector<T> dt_bias = read_all<T>(layer.weight("linear.dt_bias"));
  Gates<T> g{linear(x, layer.weight("linear.a"), layer.executor), linear(x, layer.weight("linear.b"), layer.executor)};
  for (std::int64_t t = 0; t < x.rows(); ++t) {
    for (std::size_t h = 0; h < a_log.size(); ++h) {
      g.decay[t][h] = std::exp(-std::exp(a_log[h]) * softplus(g.decay[t][h] + dt_bias[h]));
      g.beta[t][h] = sigmoid(g.beta[t][h]);
    }
  }
  return g;
}

// The recurrence over all tokens, value heads side by side. `mixed` holds q|k|v after the convolution; q and k are
// normalised here, once a key head, and value head h uses key head h / (v_heads / k_heads).
template <typename T>
Rows<T> recurrence(const LayerContext<T>& layer, Rows<T>& mixed, const Gates<T>& g, std::vector<T>& state) {
  const HybridConfig& c = layer.config;
  const auto dk = static_cast<std::size_t>(c.linear_k_dim);
  const auto dv = static_cast<std::size_t>(c.linear_v_dim);
  const auto group = static_cast<std::size_t>(c.linear_v_heads / c.linear_k_heads);
  const auto k_first = static_cast<std::size_t>(c.key_dim());
  for (std::int64_t t = 0; t < mixed.rows(); ++t) {
    for (std::size_t h = 0; h < static_cast<std::size_t>(c.linear_k_heads); ++h) {
      l2_norm(mixed[t].subspan(h * dk, dk), layer.qk_norm_epsilon, 1.0 / std::sqrt(static_cast<double>(dk)));
      l2_norm(mixed[t].subspan(k_first + h * dk, dk), layer.qk_norm_epsilon, 1.0);
    }
  }
  Rows<T> out(mixed.rows(), c.value_dim());
  parallel_for(layer.executor, c.linear_v_heads, [&](std::int64_t head) noexcept {
    const auto h = static_cast<std::size_t>(head);
    DeltaHead<T> delta{std::span(state).subspan(h * dk * dv, dk * dv), c.linear_k_dim, c.linear_v_dim};
    for (std::int64_t t = 0; t < mixed.rows(); ++t) {
      const std::span<const T> row = mixed[t];
      const auto q = row.subspan(h / group * dk, dk);
      const auto k = row.subspan(k_first + h / group * dk, dk);
      const auto v = row.subspan(2 * k_first + h * dv, dv);
      delta.step(q, k, v, g.decay[t][h], g.beta[t][h], out[t].subspan(h * dv, dv));
    }
  });
  return out;
}

}  // namespace

template <typename T>
Rows<T> gated_delta_net(const LayerContext<T>& layer, const Rows<T>& x, LayerState<T>& state) {
  const HybridConfig& c = layer.config;
  Rows<T> mixed = causal_conv(layer, linear(x, layer.weight("linear.qkv"), layer.executor), state.conv);
  Rows<T> o = recurrence(layer, mixed, gates(layer, x), state.recurrent);

  // Output norm, a head at a time, gated by z.
  const Rows<T> z = linear(x, layer.weight("linear.z"), layer.executor);
  const std::vector<T> norm = read_all<T>(layer.weight("linear.norm"));
  const auto dv = static_cast<std::size_t>(c.linear_v_dim);
  for (std::int64_t t = 0; t < x.rows(); ++t) {
    for (std::size_t h = 0; h < static_cast<std::size_t>(c.linear_v_heads); ++h) {
      rms_norm<T>(o[t].subspan(h * dv, dv), norm, c.rms_eps);
    }
    for (std::size_t i = 0; i < o[t].size(); ++i) {
      o[t][i] *= c.output_gate == OutputGateActivation::silu ? silu(z[t][i]) : sigmoid(z[t][i]);
    }
  }
  return linear(o, layer.weight("linear.out"), layer.executor);
}

template Rows<float> gated_delta_net(const LayerContext<float>&, const Rows<float>&, LayerState<float>&);
template Rows<double> gated_delta_net(const LayerContext<double>&, const Rows<double>&, LayerState<double>&);

}  // namespace sluice::reference

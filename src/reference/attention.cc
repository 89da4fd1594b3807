#include "reference/attention.h"

#include <cmath>

#include "reference/functions.h"
#include "reference/linear.h"

namespace sluice::reference {
namespace {

// Rotates the pairs (i, i + n) of a head by position * inverse_frequency[i]; dimensions from 2n on stay as they are.
// Angles are computed in double whatever T is: position times frequency loses all digits of a float at long contexts.
template <typename T>
void rotate(std::span<T> head, std::int64_t position, const RopeConfig& rope) {
  const std::size_t n = rope.inverse_frequency.size();
  for (std::size_t i = 0; i < n; ++i) {
    const double angle = static_cast<double>(position) * rope.inverse_frequency[i];
    const T cos = static_cast<T>(std::cos(angle) * rope.attention_factor);
    const T sin = static_cast<T>(std::sin(angle) * rope.attention_factor);
    const T a = head[i];
    const T b = head[i + n];
    head[i] = a * cos - b * sin;
    head[i + n] = b * cos + a * sin;
  }
}

// softmax(q K^T / sqrt(head_dim)) V for one query over the first `visible` positions of one kv head.
template <typename T>
void attend(std::span<const T> q, const LayerState<T>& state, std::size_t kv_first, std::int64_t visible,
            std::span<T> o) {
  const std::size_t dim = q.size();
  const T scale = static_cast<T>(1.0 / std::sqrt(static_cast<double>(dim)));
  std::vector<T> p(static_cast<std::size_t>(visible));
  for (std::int64_t s = 0; s < visible; ++s) {
    const auto k = state.keys[s].subspan(kv_first, dim);
    T sum = 0;
    for (std::size_t i = 0; i < dim; ++i) sum += q[i] * k[i];
    p[static_cast<std::size_t>(s)] = sum * scale;
  }
  softmax<T>(p);
  std::ranges::fill(o, T(0));
  for (std::int64_t s = 0; s < visible; ++s) {
    const auto v = state.values[s].subspan(kv_first, dim);
    for (std::size_t i = 0; i < dim; ++i) o[i] += p[static_cast<std::size_t>(s)] * v[i];
  }
}

}  // namespace

template <typename T>
Rows<T> gated_attention(const LayerContext<T>& layer, const Rows<T>& x, std::int64_t position, LayerState<T>& state) {
  const HybridConfig& c = layer.config;
  const auto heads = static_cast<std::size_t>(c.heads);
  const auto kv_heads = static_cast<std::size_t>(c.kv_heads);
  const auto dim = static_cast<std::size_t>(c.head_dim);
  const auto project = [&](const char* name, const char* bias) {
    return linear(x, layer.weight(name), layer.executor, layer.find(bias));
  };
  Rows<T> q_gate = project("attn.q_gate", "attn.q_gate_bias");  // [tokens, heads * (query | gate)]
  Rows<T> k = project("attn.k", "attn.k_bias");
  const Rows<T> v = project("attn.v", "attn.v_bias");

  const std::vector<T> q_norm = read_all<T>(layer.weight("attn.q_norm"));
  const std::vector<T> k_norm = read_all<T>(layer.weight("attn.k_norm"));
  for (std::int64_t t = 0; t < x.rows(); ++t) {
    const auto place = [&](std::span<T> head, const std::vector<T>& norm) {
      rms_norm<T>(head, norm, c.rms_eps);
      rotate(head, position + t, c.rope);
    };
    for (std::size_t h = 0; h < heads; ++h) place(q_gate[t].subspan(2 * h * dim, dim), q_norm);
    for (std::size_t h = 0; h < kv_heads; ++h) place(k[t].subspan(h * dim, dim), k_norm);
  }
  state.keys.append(k);
  state.values.append(v);

  Rows<T> out(x.rows(), c.heads * c.head_dim);
  parallel_for(layer.executor, x.rows() * c.heads, [&](std::int64_t item) noexcept {
    const std::int64_t t = item / c.heads;
    const auto h = static_cast<std::size_t>(item % c.heads);
    const std::span<const T> row = q_gate[t];
    const auto gate = row.subspan((2 * h + 1) * dim, dim);
    const auto o = out[t].subspan(h * dim, dim);
    attend(row.subspan(2 * h * dim, dim), state, h / (heads / kv_heads) * dim, position + t + 1, o);
    for (std::size_t i = 0; i < dim; ++i) o[i] *= sigmoid(gate[i]);
  });
  return linear(out, layer.weight("attn.o"), layer.executor, layer.find("attn.o_bias"));
}

template Rows<float> gated_attention(const LayerContext<float>&, const Rows<float>&, std::int64_t, LayerState<float>&);
template Rows<double> gated_attention(const LayerContext<double>&, const Rows<double>&, std::int64_t,
                                      LayerState<double>&);

}  // namespace sluice::reference

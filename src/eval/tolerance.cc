#include "eval/tolerance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace sluice {
namespace {

// Results stored in a layer: two norms, projections, convolution, gates, mixer, output norm and gate, two residual
// sums, and gate, up, product and down of the MLP.
constexpr std::int64_t kStoredPerLayer = 14;
constexpr std::int64_t kProductsPerLayer = 5;  // matrix products in a row: in, out, gate or up, down, router

// Terms of the sums that follow one another in a layer.
std::int64_t summed_in_layer(const ModelInfo& model, std::size_t layer, std::int64_t inner, std::int64_t tokens) {
  const bool linear = layer < model.layer_kinds.size() && model.layer_kinds[layer] == "linear_attention";
  const std::int64_t mixer = linear ? model.conv_kernel + 2 * model.linear_k_dim + tokens : model.head_dim + 2 * tokens;
  const std::int64_t out = linear ? model.linear_v_heads * model.linear_v_dim : model.heads * model.head_dim;
  return model.hidden + mixer + out + model.hidden + inner;
}

// The inner size of the feed-forward blocks: the last extent of their down weights, wherever the package holds them.
std::int64_t inner_size(const Manifest& manifest) {
  std::int64_t inner = 0;
  for (const WeightInfo& weight : manifest.weights_index) {
    if (!weight.canonical.ends_with(".down") || weight.shape.size() < 2) continue;
    const std::int64_t out = manifest.model.hidden;
    const std::int64_t last = weight.shape.back();
    inner = std::max(inner, last == out ? weight.shape[weight.shape.size() - 2] : last);  // stored either way round
  }
  return inner > 0 ? inner : 4 * manifest.model.hidden;
}

}  // namespace

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-53;
    case DType::f32:
      return 0x1p-24;
    case DType::f16:
      return 0x1p-11;
    case DType::bf16:
      return 0x1p-8;
    default:
      SLUICE_CHECK(!"a float dtype");
      return 1;
  }
}

Tolerance derive_tolerance(const Manifest& manifest, DType narrowed, std::int64_t tokens, double max_logit) {
  const ModelInfo& model = manifest.model;
  const std::int64_t inner = inner_size(manifest);
  std::int64_t summed = model.hidden;  // of the head
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    summed += summed_in_layer(model, static_cast<std::size_t>(layer), inner, tokens);
  }
  const std::int64_t stored = kStoredPerLayer * model.layers + 2;
  const std::int64_t products = narrowed == DType::f32 ? 0 : kProductsPerLayer * model.layers + 1;
  const auto square = [](std::int64_t count, double u) { return static_cast<double>(count) * u * u; };
  const double u = unit_roundoff(manifest.activation);
  const double u_sum = unit_roundoff(DType::f32);
  const double u_weight = unit_roundoff(narrowed);
  Tolerance t;
  t.relative = Tolerance::kMargin * std::sqrt(square(stored, u) + square(summed, u_sum) + square(products, u_weight));
  t.logits = t.relative * max_logit;
  t.formula = fmt::format("{} x sqrt({} results stored x ({:.2g})^2 + {} terms summed x ({:.2g})^2", Tolerance::kMargin,
                          stored, u, summed, u_sum);
  if (products > 0) t.formula += fmt::format(" + {} products of rounded weights x ({:.2g})^2", products, u_weight);
  t.formula += fmt::format(") x {:.4g}, the largest logit", max_logit);
  return t;
}

}  // namespace sluice

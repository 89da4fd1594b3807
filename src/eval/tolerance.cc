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

// The relative error that all roundings of a forward pass walk to, and how it comes about.
struct Walk {
  std::int64_t stored = 0, summed = 0, products = 0;
  double u = 0, u_weight = 0;

  double length() const {
    const auto square = [](std::int64_t count, double unit) { return static_cast<double>(count) * unit * unit; };
    return std::sqrt(square(stored, u) + square(summed, unit_roundoff(DType::f32)) + square(products, u_weight));
  }
  std::string text() const {
    std::string out = fmt::format("sqrt({} results stored x ({:.2g})^2 + {} terms summed x ({:.2g})^2", stored, u,
                                  summed, unit_roundoff(DType::f32));
    if (products > 0) out += fmt::format(" + {} products of rounded weights x ({:.2g})^2", products, u_weight);
    return out + ")";
  }
};

Walk walk_of(const ToleranceBasis& basis) {
  const ModelInfo& model = basis.manifest.model;
  const std::int64_t inner = inner_size(basis.manifest);
  Walk walk;
  walk.summed = model.hidden;  // of the head
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    walk.summed += summed_in_layer(model, static_cast<std::size_t>(layer), inner, basis.tokens);
  }
  walk.stored = kStoredPerLayer * model.layers + 2;
  walk.products = basis.narrowed == DType::f32 ? 0 : kProductsPerLayer * model.layers + 1;
  walk.u = unit_roundoff(basis.manifest.activation);
  walk.u_weight = unit_roundoff(basis.narrowed);
  return walk;
}

// The same pass with nothing but f32.
Walk in_f32(Walk walk) {
  walk.u = unit_roundoff(DType::f32);
  walk.products = 0;
  return walk;
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
      SLUICE_CHECK(is_float_weight(dtype));
      return 1;
  }
}

double Tolerance::of_state(const std::string& kind) const {
  const auto found = states.find(kind);
  return found == states.end() ? other_states : found->second;
}

Tolerance derive_tolerance(const ToleranceBasis& basis) {
  const Walk walk = walk_of(basis);
  const double least = Tolerance::kFloor * walk.u;
  const double walks = basis.rounded_baseline ? std::sqrt(2.0) : 1;
  const std::string both = basis.rounded_baseline ? "sqrt(2), as both sides round, x " : "";
  Tolerance t;
  t.other_states = walks * Tolerance::kMargin * walk.length();
  t.logits = t.other_states * basis.max_logit;
  t.formula =
      fmt::format("{}{} x {} x {:.4g}, the largest logit", both, Tolerance::kMargin, walk.text(), basis.max_logit);
  if (!basis.noise) return t;
  const double ratio = walk.length() / in_f32(walk).length();
  const double measured = walks * Tolerance::kMeasuredMargin * basis.noise->logits * ratio;
  std::string seen = fmt::format("{}{} x {:.3g}, the f32 rounding noise of the reference on these tokens", both,
                                 Tolerance::kMeasuredMargin, basis.noise->logits);
  if (ratio > 1) seen += fmt::format(", x {:.3g} = {} / {}", ratio, walk.text(), in_f32(walk).text());
  t.formula = measured > t.logits ? seen : t.formula + ", above " + seen;
  t.logits = std::max(measured, t.logits);
  for (const auto& [kind, noise] : basis.noise->states) {
    t.states[kind] = std::max(walks * Tolerance::kStateMargin * noise * ratio, least);
  }
  return t;
}

}  // namespace sluice

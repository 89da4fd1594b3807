#include "kernels/cpu/moe.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/cpu/linear_core.h"
#include "kernels/cpu/moe_core.h"
#include "kernels/cpu/rounding.h"

namespace sluice {
namespace {

double dot(const float* x, const WeightView& weight, std::int64_t row) noexcept {
  double sum = 0;
  for (std::int64_t i = 0; i < weight.cols; ++i) sum += static_cast<double>(x[i]) * weight_element(weight, row, i);
  return sum;
}

double activate(MoeActivation activation, double x) noexcept {
  if (activation == MoeActivation::silu) return x / (1 + std::exp(-x));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

// Room for one token.
struct TokenScratch {
  float* p;              // [experts]
  float* hidden;         // [intermediate]
  float* weight;         // [k]
  std::int32_t* chosen;  // [k]
};

void token_scalar(const MoeArgs& args, std::int64_t token, const TokenScratch& s) noexcept {
  const MoeShape& shape = args.shape;
  moe_route(args, token, s.p, s.chosen, s.weight);
  const float* x = args.x + token * shape.hidden;
  float* y = args.y + token * shape.hidden;
  std::fill_n(y, shape.hidden, 0.f);
  for (std::int64_t r = 0; r < shape.k; ++r) {
    const WeightView gate = expert_matrix(args.gate, s.chosen[r], shape.intermediate, shape.hidden);
    const WeightView up = expert_matrix(args.up, s.chosen[r], shape.intermediate, shape.hidden);
    const WeightView down = expert_matrix(args.down, s.chosen[r], shape.hidden, shape.intermediate);
    for (std::int64_t i = 0; i < shape.intermediate; ++i) {
      s.hidden[i] = static_cast<float>(activate(args.activation, dot(x, gate, i)) * dot(x, up, i));
    }
    for (std::int64_t h = 0; h < shape.hidden; ++h) y[h] += s.weight[r] * static_cast<float>(dot(s.hidden, down, h));
  }
}

// The specification: token by token, products summed in f64.
void moe_scalar(const MoeArgs& args, std::span<std::byte> scratch) noexcept {
  const MoeShape& shape = args.shape;
  TokenScratch s;
  s.p = reinterpret_cast<float*>(line_aligned(scratch));
  s.hidden = s.p + shape.experts;
  s.weight = s.hidden + shape.intermediate;
  s.chosen = reinterpret_cast<std::int32_t*>(s.weight + shape.k);
  for (std::int64_t token = 0; token < shape.tokens; ++token) token_scalar(args, token, s);
}

}  // namespace

ExpertWeights dense_experts(const std::byte* bytes, WeightFormat format, std::int64_t rows,
                            std::int64_t cols) noexcept {
  return {bytes, format, rows * cols * static_cast<std::int64_t>(weight_element_bytes(format))};
}

GateUp split_gate_up(const std::byte* gate_up, WeightFormat format, const MoeShape& shape) noexcept {
  const ExpertWeights both = dense_experts(gate_up, format, 2 * shape.intermediate, shape.hidden);
  return {both, {gate_up + both.expert_stride / 2, format, both.expert_stride}};
}

WeightView expert_matrix(const ExpertWeights& weights, std::int64_t e, std::int64_t rows, std::int64_t cols) noexcept {
  return {weights.bytes + e * weights.expert_stride, weights.format, rows, cols};
}

// The experts of one token, best first, and their weights. `p` [experts] is overwritten.
void moe_route(const MoeArgs& args, std::int64_t token, float* p, std::int32_t* chosen, float* weight) noexcept {
  const std::int64_t experts = args.shape.experts;
  const float* logits = args.router_logits + token * experts;
  float highest = logits[0];
  for (std::int64_t e = 1; e < experts; ++e) highest = std::max(highest, logits[e]);
  float sum = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    p[e] = std::exp(logits[e] - highest);
    sum += p[e];
  }
  for (std::int64_t e = 0; e < experts; ++e) p[e] /= sum;

  constexpr float kTaken = -1;  // no probability is negative
  float total = 0;
  for (std::int64_t r = 0; r < args.shape.k; ++r) {
    std::int64_t best = -1;
    for (std::int64_t e = 0; e < experts; ++e) {
      if (p[e] != kTaken && (best < 0 || p[e] > p[best])) best = e;
    }
    chosen[r] = static_cast<std::int32_t>(best);
    weight[r] = p[best];
    total += p[best];
    p[best] = kTaken;
  }
  for (std::int64_t r = 0; args.normalize && r < args.shape.k; ++r) weight[r] /= total;
}

void moe(Level level, const MoeArgs& args, std::span<std::byte> scratch, Executor& executor) noexcept {
  SLUICE_CHECK(scratch.size() >= moe_scratch_bytes(level, args));
  if (level != Level::scalar) return moe_grouped(level, args, scratch, executor);
  moe_scalar(args, scratch);
}

}  // namespace sluice

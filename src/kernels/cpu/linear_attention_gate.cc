#include "kernels/cpu/linear_attention_gate.h"

#include <cmath>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/row_kernels.h"

namespace sluice {
namespace {

double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

template <typename T>
void gate_token(const LinearAttentionGateArgs& args, std::int64_t token) {
  for (std::int64_t h = 0; h < args.heads; ++h) {
    const std::int64_t i = token * args.heads + h;
    const double x = double{to_f32(static_cast<const T*>(args.a)[i])} + double{args.dt_bias[h]};
    static_cast<T*>(args.decay)[i] = from_f32<T>(static_cast<float>(double{args.decay_scale[h]} * softplus(x)));
    if (!args.beta) continue;
    const double z = to_f32(static_cast<const T*>(args.b)[i]);
    static_cast<T*>(args.beta)[i] = from_f32<T>(static_cast<float>(1.0 / (1.0 + std::exp(-z))));
  }
}

void scalar_tokens(const LinearAttentionGateArgs& args, std::int64_t begin, std::int64_t end) noexcept {
  with_float_type(args.type, [&](auto type) {
    for (std::int64_t token = begin; token < end; ++token) gate_token<decltype(type)>(args, token);
  });
}

}  // namespace

void linear_attention_gate(Level level, const LinearAttentionGateArgs& args, Executor& executor) noexcept {
  for_row_pieces(executor, args.tokens, args.heads, [&](std::int64_t begin, std::int64_t end) noexcept {
    switch (level) {
      case Level::scalar:
        return scalar_tokens(args, begin, end);
      case Level::avx2:
        return avx2::linear_attention_gate_tokens(args, begin, end);
      case Level::avx512:
      case Level::amx:
        return avx512::linear_attention_gate_tokens(args, begin, end);
    }
  });
}

}  // namespace sluice

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace sluice::SLUICE_LEVEL {
namespace {

template <typename T>
void gate_token(const LinearAttentionGateArgs& args, std::int64_t token) {
  const std::int64_t first = token * args.heads;
  const T* a = static_cast<const T*>(args.a) + first;
  T* decay = static_cast<T*>(args.decay) + first;
  for (std::int64_t h = 0; h < args.heads; h += kLanes) {
    const std::int64_t left = args.heads - h;
    const Floats x = hn::Add(load_up_to(a + h, left), load_up_to(args.dt_bias + h, left));
    store_up_to(hn::Mul(load_up_to(args.decay_scale + h, left), softplus(x)), decay + h, left);
    if (!args.beta) continue;
    const T* b = static_cast<const T*>(args.b) + first;
    store_up_to(sigmoid(load_up_to(b + h, left)), static_cast<T*>(args.beta) + first + h, left);
  }
}

}  // namespace

void linear_attention_gate_tokens(const LinearAttentionGateArgs& args, std::int64_t begin, std::int64_t end) noexcept {
  with_float_type(args.type, [&](auto type) {
    for (std::int64_t token = begin; token < end; ++token) gate_token<decltype(type)>(args, token);
  });
}

}  // namespace sluice::SLUICE_LEVEL

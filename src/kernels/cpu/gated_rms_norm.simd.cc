#include "kernels/cpu/float_types.h"
#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace sluice::SLUICE_LEVEL {
namespace {

template <typename T>
float sum_of_squares(const T* x, std::int64_t width) {
  Floats even = zeros();
  Floats odd = zeros();
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
    const Floats a = load(x + i);
    const Floats b = load(x + i + kLanes);
    even = hn::MulAdd(a, a, even);
    odd = hn::MulAdd(b, b, odd);
  }
  for (; i < width; i += kLanes) {
    const Floats a = load_up_to(x + i, width - i);
    even = hn::MulAdd(a, a, even);
  }
  return sum_lanes(hn::Add(even, odd));
}

template <typename T, NormGate kActivation>
void normalise_group(const GatedRmsNormArgs& args, std::int64_t group) {
  const T* x = static_cast<const T*>(args.input) + group * args.width;
  const T* gate = static_cast<const T*>(args.gate) + group * args.width;
  const T* scale = static_cast<const T*>(args.scale);
  T* y = static_cast<T*>(args.output) + group * args.width;
  const float mean = sum_of_squares(x, args.width) / static_cast<float>(args.width);
  const Floats inverse = hn::Div(all(1.0f), hn::Sqrt(all(mean + args.epsilon)));
  for (std::int64_t i = 0; i < args.width; i += kLanes) {
    const std::int64_t left = args.width - i;
    const Floats z = load_up_to(gate + i, left);
    const Floats activated = kActivation == NormGate::silu ? silu(z) : sigmoid(z);
    const Floats normal = hn::Mul(hn::Mul(load_up_to(x + i, left), inverse), load_up_to(scale + i, left));
    store_up_to(hn::Mul(normal, activated), y + i, left);
  }
}

}  // namespace

void gated_rms_norm_groups(const GatedRmsNormArgs& args, std::int64_t begin, std::int64_t end) noexcept {
  with_float_type(args.type, [&](auto type) {
    using T = decltype(type);
    const bool silu_gate = args.activation == NormGate::silu;
    for (std::int64_t group = begin; group < end; ++group) {
      silu_gate ? normalise_group<T, NormGate::silu>(args, group) : normalise_group<T, NormGate::sigmoid>(args, group);
    }
  });
}

}  // namespace sluice::SLUICE_LEVEL

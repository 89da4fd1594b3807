#include "kernels/cpu/gated_rms_norm.h"

#include <cmath>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/row_kernels.h"

namespace sluice {
namespace {

template <typename T>
void normalise_group(const GatedRmsNormArgs& args, std::int64_t group) {
  const T* x = static_cast<const T*>(args.input) + group * args.width;
  const T* gate = static_cast<const T*>(args.gate) + group * args.width;
  const T* scale = static_cast<const T*>(args.scale);
  T* y = static_cast<T*>(args.output) + group * args.width;
  double squares = 0;
  for (std::int64_t i = 0; i < args.width; ++i) squares += double{to_f32(x[i])} * double{to_f32(x[i])};
  const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(args.width) + double{args.epsilon});
  for (std::int64_t i = 0; i < args.width; ++i) {
    const double z = to_f32(gate[i]);
    const double sigmoid = 1.0 / (1.0 + std::exp(-z));
    const double activated = args.activation == NormGate::silu ? z * sigmoid : sigmoid;
    y[i] = from_f32<T>(static_cast<float>(double{to_f32(x[i])} * inverse * double{to_f32(scale[i])} * activated));
  }
}

void scalar_groups(const GatedRmsNormArgs& args, std::int64_t begin, std::int64_t end) noexcept {
  with_float_type(args.type, [&](auto type) {
    for (std::int64_t group = begin; group < end; ++group) normalise_group<decltype(type)>(args, group);
  });
}

}  // namespace

void gated_rms_norm(Level level, const GatedRmsNormArgs& args, Executor& executor) noexcept {
  for_row_pieces(executor, args.groups, args.width, [&](std::int64_t begin, std::int64_t end) noexcept {
    switch (level) {
      case Level::scalar:
        return scalar_groups(args, begin, end);
      case Level::avx2:
        return avx2::gated_rms_norm_groups(args, begin, end);
      case Level::avx512:
      case Level::amx:
        return avx512::gated_rms_norm_groups(args, begin, end);
    }
  });
}

}  // namespace sluice

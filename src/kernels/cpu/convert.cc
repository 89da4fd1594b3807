#include "kernels/cpu/convert.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/float16.h"
#include "kernels/cpu/convert_core.h"

namespace sluice {
namespace {

float quiet(float x) noexcept {
  return std::isnan(x) ? std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) | 0x400000u) : x;
}

// Widening a half makes a NaN quiet, as the processor's own instruction does; the other widenings copy bits.
float widened(float x) noexcept { return x; }
float widened(bf16 x) noexcept { return to_f32(x); }
float widened(f16 x) noexcept { return quiet(to_f32(x)); }

float apply(ConvertStep step, float x) noexcept {
  switch (step) {
    case ConvertStep::none:
      return x;
    case ConvertStep::plus_one:
      return 1.0f + x;
    case ConvertStep::neg_exp:
      return static_cast<float>(-std::exp(static_cast<double>(x)));
  }
  return x;
}

bool is_subnormal(float stored, DType dtype) noexcept {
  const float smallest = dtype == DType::f16 ? 0x1p-14f : 0x1p-126f;
  return stored != 0 && std::fabs(stored) < smallest;
}

template <typename From, typename To>
void convert_scalar(const ConvertArgs& args, ConvertCounts& counts) noexcept {
  for (std::uint64_t i = 0; i < args.count; ++i) {
    From source;
    std::memcpy(&source, args.source + i * sizeof(From), sizeof(From));
    const float x = widened(source);
    const float value = apply(args.step, x);
    const To target = from_f32<To>(value);
    std::memcpy(args.target + i * sizeof(To), &target, sizeof(To));
    const float stored = to_f32(target);
    counts.not_finite += !std::isfinite(x);
    counts.overflowed += std::isfinite(x) && std::isinf(stored);
    counts.flushed += value != 0 && stored == 0;
    counts.subnormal += std::isnormal(value) && is_subnormal(stored, args.to);
  }
}

template <typename From>
void convert_scalar_from(const ConvertArgs& args, ConvertCounts& counts) noexcept {
  switch (args.to) {
    case DType::f32:
      return convert_scalar<From, float>(args, counts);
    case DType::f16:
      return convert_scalar<From, f16>(args, counts);
    case DType::bf16:
      return convert_scalar<From, bf16>(args, counts);
    default:
      return;
  }
}

void convert_span_scalar(const ConvertArgs& args, ConvertCounts& counts) noexcept {
  switch (args.from) {
    case DType::f32:
      return convert_scalar_from<float>(args, counts);
    case DType::f16:
      return convert_scalar_from<f16>(args, counts);
    case DType::bf16:
      return convert_scalar_from<bf16>(args, counts);
    default:
      return;
  }
}

}  // namespace

ConvertCounts& ConvertCounts::operator+=(const ConvertCounts& other) noexcept {
  elements += other.elements;
  not_finite += other.not_finite;
  overflowed += other.overflowed;
  flushed += other.flushed;
  subnormal += other.subnormal;
  return *this;
}

ConvertCounts convert(Level level, const ConvertArgs& args) noexcept {
  SLUICE_CHECK(is_float_weight(args.from) && is_float_weight(args.to));
  ConvertCounts counts;
  counts.elements = args.count;
  if (args.step == ConvertStep::neg_exp) level = Level::scalar;  // small tensors, and one libm
  switch (level) {
    case Level::scalar:
      convert_span_scalar(args, counts);
      break;
    case Level::avx2:
      avx2::convert_span(args, counts);
      break;
    case Level::avx512:
    case Level::amx:
      avx512::convert_span(args, counts);
      break;
  }
  return counts;
}

}  // namespace sluice

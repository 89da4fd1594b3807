// Conversions a vector at a time. What was lost is counted by comparing the magnitude's bits with the thresholds of the
// target format, which is cheaper than looking at the result.
#include <hwy/highway.h>

#include <cstring>

#include "kernels/cpu/convert_core.h"

namespace sluice {
namespace SLUICE_LEVEL {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<std::uint16_t, F32>;
using Vec = hn::Vec<F32>;
using Bits = hn::Vec<I32>;
constexpr F32 kF32;
constexpr I32 kI32;
constexpr U32 kU32;
constexpr U16 kU16;
constexpr std::int64_t kLanes = HWY_LANES(float);

struct Single {
  using Stored = float;
};
struct Half {
  using Stored = hwy::float16_t;
  // Of magnitudes as f32 bits: finite ones from kInfinite on become Inf, up to kZero zero, and between kZero and
  // kNormal subnormal. Each is the midpoint that rounds to even: 65520, 2^-25, 2^-14 - 2^-25.
  static constexpr std::int32_t kInfinite = 0x477ff000;
  static constexpr std::int32_t kZero = 0x33000000;
  static constexpr std::int32_t kNormal = 0x387fe000;
};
struct Brain {
  using Stored = hwy::bfloat16_t;
  static constexpr std::int32_t kInfinite = 0x7f7f8000;
  static constexpr std::int32_t kZero = 0x8000;
};

HWY_INLINE Vec load(Single, const float* p) { return hn::LoadU(kF32, p); }
HWY_INLINE Vec load(Half, const hwy::float16_t* p) {
  return hn::PromoteTo(kF32, hn::LoadU(hn::Rebind<hwy::float16_t, F32>(), p));
}
HWY_INLINE Vec load(Brain, const hwy::bfloat16_t* p) {
  return hn::PromoteTo(kF32, hn::LoadU(hn::Rebind<hwy::bfloat16_t, F32>(), p));
}

HWY_INLINE void store(Single, Vec v, float* p) { hn::StoreU(v, kF32, p); }
HWY_INLINE void store(Half, Vec v, hwy::float16_t* p) {
  const hn::Rebind<hwy::float16_t, F32> d16;
  hn::StoreU(hn::DemoteTo(d16, v), d16, p);  // rounds to nearest even, whatever MXCSR says
}
HWY_INLINE void store(Brain, Vec v, hwy::bfloat16_t* p) {
  const auto bits = hn::BitCast(kU32, v);
  const auto high = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(high, hn::Set(kU32, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(kU32, 0x7fffu))));
  const auto nan = hn::Or(high, hn::Set(kU32, 0x40u));
  const auto chosen = hn::IfThenElse(hn::RebindMask(kU32, hn::IsNaN(v)), nan, rounded);
  // Below 2^16, so that the saturating narrowing from signed lanes is exact.
  hn::StoreU(hn::DemoteTo(kU16, hn::BitCast(kI32, chosen)), kU16, reinterpret_cast<std::uint16_t*>(p));
}

// Counts a lane.
struct Tally {
  Bits not_finite = hn::Zero(kI32);
  Bits overflowed = hn::Zero(kI32);
  Bits flushed = hn::Zero(kI32);
  Bits subnormal = hn::Zero(kI32);
};

HWY_INLINE Bits magnitude(Vec v) { return hn::And(hn::BitCast(kI32, v), hn::Set(kI32, 0x7fffffff)); }

template <class M>
HWY_INLINE void count_if(M mask, Bits& count) {
  count = hn::Sub(count, hn::VecFromMask(kI32, mask));
}

HWY_INLINE auto at_least(Bits v, std::int32_t threshold) { return hn::Gt(v, hn::Set(kI32, threshold - 1)); }

template <class To>
HWY_INLINE void tally(Vec source, Vec value, Tally& t) {
  constexpr std::int32_t kInfinity = 0x7f800000;
  count_if(at_least(magnitude(source), kInfinity), t.not_finite);
  if constexpr (!hwy::IsSame<To, Single>()) {
    const Bits a = magnitude(value);
    const auto source_finite = hn::Not(at_least(magnitude(source), kInfinity));
    count_if(hn::And(source_finite, at_least(a, To::kInfinite)), t.overflowed);
    const auto not_zero = at_least(a, 1);
    count_if(hn::AndNot(at_least(a, To::kZero + 1), not_zero), t.flushed);
    if constexpr (hwy::IsSame<To, Half>()) {
      count_if(hn::AndNot(at_least(a, To::kNormal), at_least(a, To::kZero + 1)), t.subnormal);
    }
  }
}

HWY_INLINE std::uint64_t total(Bits v) {
  alignas(64) std::int32_t lanes[kLanes];
  hn::Store(v, kI32, lanes);
  std::uint64_t sum = 0;
  for (const std::int32_t lane : lanes) sum += static_cast<std::uint64_t>(lane);
  return sum;
}

template <class From, class To, bool kPlusOne>
HWY_INLINE void convert_vector(const typename From::Stored* source, typename To::Stored* target, Tally& t) {
  const Vec x = load(From(), source);
  const Vec value = kPlusOne ? hn::Add(hn::Set(kF32, 1.0f), x) : x;
  tally<To>(x, value, t);
  store(To(), value, target);
}

template <class From, class To, bool kPlusOne>
void convert_all(const ConvertArgs& args, ConvertCounts& counts) {
  using Source = typename From::Stored;
  using Target = typename To::Stored;
  const auto* source = reinterpret_cast<const Source*>(args.source);
  auto* target = reinterpret_cast<Target*>(args.target);
  const auto count = static_cast<std::int64_t>(args.count);
  constexpr std::int64_t kPiece = 1 << 24;  // elements: keeps the counts of a lane far from overflow
  for (std::int64_t begin = 0; begin < count; begin += kPiece) {
    const std::int64_t end = count - begin < kPiece ? count : begin + kPiece;
    Tally t;
    std::int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) convert_vector<From, To, kPlusOne>(source + i, target + i, t);
    if (i < end) {
      alignas(64) Source in[kLanes];
      alignas(64) Target out[kLanes];
      const auto rest = static_cast<std::size_t>(end - i);
      std::memset(static_cast<void*>(in), 0, sizeof(in));
      std::memcpy(static_cast<void*>(in), static_cast<const void*>(source + i), rest * sizeof(Source));
      convert_vector<From, To, kPlusOne>(in, out, t);
      std::memcpy(static_cast<void*>(target + i), static_cast<const void*>(out), rest * sizeof(Target));
    }
    counts.not_finite += total(t.not_finite);
    counts.overflowed += total(t.overflowed);
    counts.flushed += total(t.flushed);
    counts.subnormal += total(t.subnormal);
  }
}

template <class From, class To>
void convert_step(const ConvertArgs& args, ConvertCounts& counts) {
  return args.step == ConvertStep::plus_one ? convert_all<From, To, true>(args, counts)
                                            : convert_all<From, To, false>(args, counts);
}

template <class From>
void convert_from(const ConvertArgs& args, ConvertCounts& counts) {
  switch (args.to) {
    case DType::f32:
      return convert_step<From, Single>(args, counts);
    case DType::f16:
      return convert_step<From, Half>(args, counts);
    case DType::bf16:
      return convert_step<From, Brain>(args, counts);
    default:
      return;
  }
}

}  // namespace

void convert_span(const ConvertArgs& args, ConvertCounts& counts) noexcept {
  switch (args.from) {
    case DType::f32:
      return convert_from<Single>(args, counts);
    case DType::f16:
      return convert_from<Half>(args, counts);
    case DType::bf16:
      return convert_from<Brain>(args, counts);
    default:
      return;
  }
}

}  // namespace SLUICE_LEVEL
}  // namespace sluice

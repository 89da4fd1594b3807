// Loads, stores and elementary functions over full vectors, for the *.simd.cc files alone: everything has internal
// linkage inside the level's namespace, so that no symbol built for one level can stand in for another's.
//
// Half types are widened exactly and narrowed to nearest even, as base/float16.h does.
#pragma once

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/float16.h"

namespace sluice::SLUICE_LEVEL {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using IntTag = hn::RebindToSigned<FloatTag>;
using HalfTag = hn::Rebind<std::uint16_t, FloatTag>;
using Floats = hn::Vec<FloatTag>;
constexpr FloatTag kFloats;
constexpr std::int64_t kLanes = static_cast<std::int64_t>(HWY_LANES(float));

// How a storage type lies in a vector register of kLanes elements, and how that becomes floats.
template <typename T>
struct Stored;

template <>
struct Stored<float> {
  using Lane = float;
  using Tag = FloatTag;
  static HWY_INLINE Floats widen(hn::Vec<Tag> raw) { return raw; }
};

template <>
struct Stored<f16> {
  using Lane = std::uint16_t;
  using Tag = HalfTag;
  static HWY_INLINE Floats widen(hn::Vec<Tag> raw) {
    const hn::Rebind<hwy::float16_t, FloatTag> halves;
    return hn::PromoteTo(kFloats, hn::BitCast(halves, raw));
  }
};

template <>
struct Stored<bf16> {
  using Lane = std::uint16_t;
  using Tag = HalfTag;
  static HWY_INLINE Floats widen(hn::Vec<Tag> raw) {
    const hn::RebindToUnsigned<FloatTag> words;
    return hn::BitCast(kFloats, hn::ShiftLeft<16>(hn::PromoteTo(words, raw)));
  }
};

template <typename T>
using Raw = hn::Vec<typename Stored<T>::Tag>;

template <typename T>
HWY_INLINE const typename Stored<T>::Lane* lanes_of(const T* from) {
  return reinterpret_cast<const typename Stored<T>::Lane*>(from);
}

template <typename T>
HWY_INLINE typename Stored<T>::Lane* lanes_of(T* to) {
  return reinterpret_cast<typename Stored<T>::Lane*>(to);
}

template <typename T>
HWY_INLINE Floats load(const T* from) {
  return Stored<T>::widen(hn::LoadU(typename Stored<T>::Tag(), lanes_of(from)));
}

HWY_INLINE void store(Floats v, float* to) { hn::StoreU(v, kFloats, to); }

HWY_INLINE void store(Floats v, f16* to) {
  const hn::Rebind<hwy::float16_t, FloatTag> halves;
  hn::StoreU(hn::BitCast(HalfTag(), hn::DemoteTo(halves, v)), HalfTag(), lanes_of(to));
}

HWY_INLINE void store(Floats v, bf16* to) {
  const hn::RebindToUnsigned<FloatTag> words;
  const auto bits = hn::BitCast(words, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fff)));
  const auto quiet = hn::Or(bits, hn::Set(words, 0x400000));
  const auto chosen = hn::IfThenElse(hn::RebindMask(words, hn::IsNaN(v)), quiet, rounded);
  const auto high = hn::BitCast(IntTag(), hn::ShiftRight<16>(chosen));
  hn::StoreU(hn::DemoteTo(HalfTag(), high), HalfTag(), lanes_of(to));
}

// The first `count` < kLanes elements; lanes beyond read as zero, memory beyond is not touched.
template <typename T>
HWY_INLINE Floats load_part(const T* from, std::int64_t count) {
  HWY_ALIGN T padded[kLanes] = {};
  std::memcpy(static_cast<void*>(padded), from, static_cast<std::size_t>(count) * sizeof(T));
  return load(padded);
}

template <typename T>
HWY_INLINE void store_part(Floats v, T* to, std::int64_t count) {
  HWY_ALIGN T padded[kLanes];
  store(v, padded);
  std::memcpy(static_cast<void*>(to), padded, static_cast<std::size_t>(count) * sizeof(T));
}

// load or load_part, whichever fits before `end`.
template <typename T>
HWY_INLINE Floats load_up_to(const T* from, std::int64_t left) {
  return left >= kLanes ? load(from) : load_part(from, left);
}

template <typename T>
HWY_INLINE void store_up_to(Floats v, T* to, std::int64_t left) {
  if (left >= kLanes) {
    store(v, to);
  } else {
    store_part(v, to, left);
  }
}

HWY_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
HWY_INLINE std::int64_t larger(std::int64_t a, std::int64_t b) { return a < b ? b : a; }

HWY_INLINE Floats zeros() { return hn::Zero(kFloats); }
HWY_INLINE Floats all(float x) { return hn::Set(kFloats, x); }

// Sums the lanes pairwise, halves first: one fixed tree.
HWY_INLINE float sum_lanes(Floats v) {
#if HWY_TARGET == HWY_AVX2
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v.raw), _mm256_extractf128_ps(v.raw, 1));
#else
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v.raw), _mm512_extractf32x8_ps(v.raw, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
#endif
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

HWY_INLINE float max_lane(Floats v) {
#if HWY_TARGET == HWY_AVX2
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v.raw), _mm256_extractf128_ps(v.raw, 1));
#else
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(v.raw), _mm512_extractf32x8_ps(v.raw, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
#endif
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

constexpr float kExpLowest = -87.33654f;  // below, e^x is not a normal float
constexpr float kExpHighest = 88.37626f;  // above, the exponent would overflow

// e^x for x in [kExpLowest, kExpHighest], within 1.1 units in the last place (measured over every float); NaN for NaN.
// x = n ln 2 + r, |r| <= ln 2 / 2; e^r by a minimax polynomial (relative error 3.1e-9); n added to the exponent.
HWY_INLINE Floats exp_in_range(Floats x) {
  const IntTag words;
  const Floats magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  const Floats shifted = hn::MulAdd(x, all(1.44269504f), magic);
  const Floats n = hn::Sub(shifted, magic);
  Floats r = hn::NegMulAdd(n, all(0.693145752f), x);  // ln 2 in two parts, the first with 9 zero bits at its end
  r = hn::NegMulAdd(n, all(1.42860677e-6f), r);
  Floats p = all(1.381446549e-03f);
  p = hn::MulAdd(p, r, all(8.368780536e-03f));
  p = hn::MulAdd(p, r, all(4.166839425e-02f));
  p = hn::MulAdd(p, r, all(1.666652011e-01f));
  p = hn::MulAdd(p, r, all(4.999999341e-01f));
  p = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), all(1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(words, shifted));
  return hn::BitCast(kFloats, hn::Add(hn::BitCast(words, p), exponent));
}

// e^x for x <= 0: below kExpLowest (and for -Inf) exactly 0, since subnormal factors would slow products down; NaN for NaN.
HWY_INLINE Floats exp_of_nonpositive(Floats x) {
  const Floats lowest = all(kExpLowest);
  const Floats e = exp_in_range(hn::Max(lowest, x));  // the operand order keeps a NaN in x
  return hn::IfThenZeroElse(hn::Lt(x, lowest), e);
}

// e^x over the whole range: 0 below kExpLowest, infinity above kExpHighest; NaN for NaN.
HWY_INLINE Floats exp_any(Floats x) {
  const Floats lowest = all(kExpLowest), highest = all(kExpHighest);
  const Floats e = hn::IfThenZeroElse(hn::Lt(x, lowest), exp_in_range(hn::Min(highest, hn::Max(lowest, x))));
  return hn::IfThenElse(hn::Gt(x, highest), hn::Inf(kFloats), e);
}

// 1 + e^-x with e^-x clamped to the normal floats.
HWY_INLINE Floats one_plus_exp_of_minus(Floats x) {
  const Floats bounded = hn::Min(all(kExpHighest), hn::Max(all(kExpLowest), hn::Neg(x)));
  return hn::Add(all(1.0f), exp_in_range(bounded));
}

HWY_INLINE Floats sigmoid(Floats x) { return hn::Div(all(1.0f), one_plus_exp_of_minus(x)); }
HWY_INLINE Floats silu(Floats x) { return hn::Div(x, one_plus_exp_of_minus(x)); }

// ln(1 + y) for y in [0, 1]: 2 artanh(s), s = y / (2 + y) <= 1/3, by a minimax polynomial in s^2 (error 1.1e-10).
HWY_INLINE Floats log1p_of_unit(Floats y) {
  const Floats s = hn::Div(y, hn::Add(y, all(2.0f)));
  const Floats z = hn::Mul(s, s);
  Floats p = all(1.215083876e-01f);
  p = hn::MulAdd(p, z, all(1.071373806e-01f));
  p = hn::MulAdd(p, z, all(1.430844998e-01f));
  p = hn::MulAdd(p, z, all(1.999943863e-01f));
  p = hn::MulAdd(p, z, all(3.333333781e-01f));
  const Floats twice = hn::Add(s, s);
  return hn::MulAdd(hn::Mul(twice, z), p, twice);
}

// ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|).
HWY_INLINE Floats softplus(Floats x) {
  const Floats small = exp_of_nonpositive(hn::Neg(hn::Abs(x)));
  return hn::Add(hn::Max(hn::Zero(kFloats), x), log1p_of_unit(small));
}

// tanh by a minimax polynomial below 0.55 (relative error 1e-9), (1 - e^-2|x|) / (1 + e^-2|x|) above.
HWY_INLINE Floats tanh(Floats x) {
  const Floats magnitude = hn::Abs(x);
  const Floats z = hn::Mul(x, x);
  Floats p = all(-6.273170478e-03f);
  p = hn::MulAdd(p, z, all(2.107090757e-02f));
  p = hn::MulAdd(p, z, all(-5.385211932e-02f));
  p = hn::MulAdd(p, z, all(1.333258430e-01f));
  p = hn::MulAdd(p, z, all(-3.333331751e-01f));
  const Floats near = hn::MulAdd(hn::Mul(x, z), p, x);
  const Floats e = exp_of_nonpositive(hn::Mul(magnitude, all(-2.0f)));
  const Floats far = hn::CopySign(hn::Div(hn::Sub(all(1.0f), e), hn::Add(all(1.0f), e)), x);
  return hn::IfThenElse(hn::Lt(magnitude, all(0.55f)), near, far);
}

}  // namespace
}  // namespace sluice::SLUICE_LEVEL

// Vector vocabulary of the GatedDeltaNet kernels: rows in and out of f32, exp, sums, transposition. Included only by
// the objects of a level; everything has internal linkage there.
#pragma once

#include <hwy/cache_control.h>
#include <hwy/highway.h>
// After highway.h: the math functions are compiled for its static target.
#include <hwy/contrib/math/math-inl.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/gated_delta_net_plan.h"

namespace sluice::SLUICE_LEVEL {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using Index = std::int64_t;

constexpr D kF32;
constexpr Index kLanes = static_cast<Index>(hn::MaxLanes(D()));
constexpr Index kVectors = 2;                  // of a block of value columns
constexpr Index kColumns = kVectors * kLanes;  // value columns worked on at once
static_assert(gdn::kColumnAlign % kColumns == 0);

// ---------------------------------------------------------------------------------------------- rows in and out of f32

HWY_INLINE V widen(const std::uint16_t* bits, DType dtype) {
  if (dtype == DType::f16) {
    const hn::Rebind<hwy::float16_t, D> half;
    return hn::PromoteTo(kF32, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(bits)));
  }
  const hn::Rebind<std::uint16_t, D> narrow;
  const hn::RebindToUnsigned<D> wide;
  return hn::BitCast(kF32, hn::ShiftLeft<16>(hn::PromoteTo(wide, hn::LoadU(narrow, bits))));
}

// Round to nearest even; a NaN stays one.
HWY_INLINE void narrow_store(V x, DType dtype, std::uint16_t* bits) {
  if (dtype == DType::f16) {
    const hn::Rebind<hwy::float16_t, D> half;
    hn::StoreU(hn::DemoteTo(half, x), half, reinterpret_cast<hwy::float16_t*>(bits));
    return;
  }
  const hn::Rebind<std::uint16_t, D> narrow;
  const hn::RebindToUnsigned<D> wide;
  const hn::RebindToSigned<D> wide_signed;
  const auto u = hn::BitCast(wide, x);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(wide, 1));
  const auto rounded = hn::Add(u, hn::Add(odd, hn::Set(wide, 0x7fff)));
  const auto quiet = hn::Or(u, hn::Set(wide, 0x400000));
  const auto chosen = hn::IfThenElse(hn::RebindMask(wide, hn::IsNaN(x)), quiet, rounded);
  hn::StoreU(hn::DemoteTo(narrow, hn::BitCast(wide_signed, hn::ShiftRight<16>(chosen))), narrow, bits);
}

// dst[0, count) = src widened; dst[count, padded) = 0. padded: a multiple of kLanes.
inline void load_row(const std::byte* src, DType dtype, Index count, float* dst, Index padded) {
  Index i = 0;
  if (dtype == DType::f32) {
    const float* from = reinterpret_cast<const float*>(src);
    for (; i + kLanes <= count; i += kLanes) hn::StoreU(hn::LoadU(kF32, from + i), kF32, dst + i);
    if (i < count) {
      hn::StoreU(hn::MaskedLoad(hn::FirstN(kF32, static_cast<std::size_t>(count - i)), kF32, from + i), kF32, dst + i);
      i += kLanes;
    }
  } else {
    const std::uint16_t* from = reinterpret_cast<const std::uint16_t*>(src);
    for (; i + kLanes <= count; i += kLanes) hn::StoreU(widen(from + i, dtype), kF32, dst + i);
    if (i < count) {
      std::uint16_t tail[kLanes] = {};
      std::memcpy(tail, from + i, static_cast<std::size_t>(count - i) * 2);
      hn::StoreU(widen(tail, dtype), kF32, dst + i);
      i += kLanes;
    }
  }
  for (; i < padded; i += kLanes) hn::StoreU(hn::Zero(kF32), kF32, dst + i);
}

// dst[0, count) = src narrowed; src may be read up to the next multiple of kLanes.
inline void store_row(const float* src, DType dtype, Index count, std::byte* dst) {
  Index i = 0;
  if (dtype == DType::f32) {
    float* to = reinterpret_cast<float*>(dst);
    for (; i + kLanes <= count; i += kLanes) hn::StoreU(hn::LoadU(kF32, src + i), kF32, to + i);
    if (i < count) {
      hn::BlendedStore(hn::LoadU(kF32, src + i), hn::FirstN(kF32, static_cast<std::size_t>(count - i)), kF32, to + i);
    }
    return;
  }
  std::uint16_t* to = reinterpret_cast<std::uint16_t*>(dst);
  for (; i + kLanes <= count; i += kLanes) narrow_store(hn::LoadU(kF32, src + i), dtype, to + i);
  if (i < count) {
    std::uint16_t tail[kLanes];
    narrow_store(hn::LoadU(kF32, src + i), dtype, tail);
    std::memcpy(to + i, tail, static_cast<std::size_t>(count - i) * 2);
  }
}

HWY_INLINE float load_one(const float* at) {
  float value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// dst[c * dst_stride + r] = src[r * src_stride + c] for r < rows, c < columns.
inline void transpose(const float* src, Index src_stride, Index rows, Index columns, float* dst, Index dst_stride) {
  const hn::Full128<float> d4;
  const hn::Full128<std::uint64_t> d2;
  const auto pairs = [&](auto v) { return hn::BitCast(d2, v); };
  Index r = 0;
  for (; r + 4 <= rows; r += 4) {
    const float* from = src + r * src_stride;
    Index c = 0;
    for (; c + 4 <= columns; c += 4) {
      const auto a = hn::LoadU(d4, from + c);
      const auto b = hn::LoadU(d4, from + src_stride + c);
      const auto e = hn::LoadU(d4, from + 2 * src_stride + c);
      const auto f = hn::LoadU(d4, from + 3 * src_stride + c);
      const auto ab_low = pairs(hn::InterleaveLower(d4, a, b)), ab_high = pairs(hn::InterleaveUpper(d4, a, b));
      const auto ef_low = pairs(hn::InterleaveLower(d4, e, f)), ef_high = pairs(hn::InterleaveUpper(d4, e, f));
      float* to = dst + c * dst_stride + r;
      hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, ab_low, ef_low)), d4, to);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, ab_low, ef_low)), d4, to + dst_stride);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, ab_high, ef_high)), d4, to + 2 * dst_stride);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, ab_high, ef_high)), d4, to + 3 * dst_stride);
    }
    for (; c < columns; ++c) {
      for (Index k = 0; k < 4; ++k) std::memcpy(dst + c * dst_stride + r + k, from + k * src_stride + c, sizeof(float));
    }
  }
  for (; r < rows; ++r) {
    for (Index c = 0; c < columns; ++c) std::memcpy(dst + c * dst_stride + r, src + r * src_stride + c, sizeof(float));
  }
}

// -------------------------------------------------------------------------------------------------------------- maths

// exp over the whole range: 0 far below, infinity far above, NaN stays NaN.
HWY_INLINE V exp_any(V x) {
  const V y = hn::Exp(kF32, hn::Min(x, hn::Set(kF32, 104.0f)));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

// exp of x <= 0, zero where the result would not be a normal number: subnormal factors would slow every product down.
HWY_INLINE V exp_decay(V x) { return hn::IfThenElseZero(hn::Ge(x, hn::Set(kF32, -87.0f)), hn::Exp(kF32, x)); }

HWY_INLINE V sigmoid(V x) {
  const V one = hn::Set(kF32, 1.0f);
  return hn::Div(one, hn::Add(one, exp_any(hn::Neg(x))));
}

HWY_INLINE V softplus(V x) {
  const V small = hn::Log1p(kF32, exp_any(hn::Min(x, hn::Set(kF32, 20.0f))));
  return hn::IfThenElse(hn::Le(x, hn::Set(kF32, 20.0f)), small, x);  // NaN falls through as itself
}

// Folds a vector to four lanes, adding lanes of equal index modulo four.
HWY_INLINE hn::Vec<hn::Full128<float>> fold4(hn::Vec<hn::Full128<float>> x) { return x; }
template <class Wide>
HWY_INLINE hn::Vec<hn::Full128<float>> fold4(Wide x) {
  const hn::Half<hn::DFromV<Wide>> half;
  return fold4(hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x)));
}

// The sums of four vectors' lanes, in four lanes.
HWY_INLINE hn::Vec<hn::Full128<float>> sums4(V a, V b, V c, V e) {
  const hn::Full128<float> d4;
  const hn::Full128<std::uint64_t> d2;
  const auto fa = fold4(a), fb = fold4(b), fc = fold4(c), fe = fold4(e);
  const auto ab = hn::BitCast(d2, hn::Add(hn::InterleaveLower(d4, fa, fb), hn::InterleaveUpper(d4, fa, fb)));
  const auto ce = hn::BitCast(d2, hn::Add(hn::InterleaveLower(d4, fc, fe), hn::InterleaveUpper(d4, fc, fe)));
  return hn::Add(hn::BitCast(d4, hn::InterleaveLower(d2, ab, ce)), hn::BitCast(d4, hn::InterleaveUpper(d2, ab, ce)));
}

// Sum of squares of row[0, padded), padded a multiple of kLanes.
HWY_INLINE float sum_squares(const float* row, Index padded) {
  V sum = hn::Zero(kF32);
  for (Index i = 0; i < padded; i += kLanes) {
    const V x = hn::LoadU(kF32, row + i);
    sum = hn::MulAdd(x, x, sum);
  }
  return hn::GetLane(sums4(sum, sum, sum, sum));
}

HWY_INLINE void scale_row(float* row, Index padded, float factor) {
  const V f = hn::Set(kF32, factor);
  for (Index i = 0; i < padded; i += kLanes) hn::StoreU(hn::Mul(f, hn::LoadU(kF32, row + i)), kF32, row + i);
}

}  // namespace
}  // namespace sluice::SLUICE_LEVEL

// Vector vocabulary of the GatedDeltaNet kernels beyond vector_math.h: rows in and out of f32, sums, transposition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/gated_delta_net_plan.h"
#include "kernels/cpu/vector_math.h"

namespace sluice::SLUICE_LEVEL {
namespace {

using D = FloatTag;
using V = Floats;
using Index = std::int64_t;

constexpr D kF32;
constexpr Index kVectors = 2;                  // of a block of value columns
constexpr Index kColumns = kVectors * kLanes;  // value columns worked on at once
static_assert(gdn::kColumnAlign % kColumns == 0);

// ---------------------------------------------------------------------------------------------- rows in and out of f32

template <typename T>
HWY_INLINE void load_row_of(const T* src, Index count, float* dst, Index padded) {
  Index i = 0;
  for (; i + kLanes <= count; i += kLanes) store(load(src + i), dst + i);
  if (i < count) {
    store(load_part(src + i, count - i), dst + i);
    i += kLanes;
  }
  for (; i < padded; i += kLanes) store(zeros(), dst + i);
}

// dst[0, count) = src widened; dst[count, padded) = 0. padded: a multiple of kLanes.
inline void load_row(const std::byte* src, DType dtype, Index count, float* dst, Index padded) {
  if (dtype == DType::f32) return load_row_of(reinterpret_cast<const float*>(src), count, dst, padded);
  if (dtype == DType::f16) return load_row_of(reinterpret_cast<const f16*>(src), count, dst, padded);
  load_row_of(reinterpret_cast<const bf16*>(src), count, dst, padded);
}

template <typename T>
HWY_INLINE void store_row_of(const float* src, Index count, T* dst) {
  for (Index i = 0; i < count; i += kLanes) store_up_to(load(src + i), dst + i, count - i);
}

// dst[0, count) = src narrowed; src may be read up to the next multiple of kLanes.
inline void store_row(const float* src, DType dtype, Index count, std::byte* dst) {
  if (dtype == DType::f32) return store_row_of(src, count, reinterpret_cast<float*>(dst));
  if (dtype == DType::f16) return store_row_of(src, count, reinterpret_cast<f16*>(dst));
  store_row_of(src, count, reinterpret_cast<bf16*>(dst));
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

// Turning pairs of elements by an angle, for the *.simd.cc files alone (vector_math.h says why).
#pragma once

#include "kernels/cpu/vector_math.h"

namespace sluice::SLUICE_LEVEL {
namespace {

struct Pair {
  Floats u, v;
};

HWY_INLINE Pair turned(Pair p, Floats cos, Floats sin) {
  return {hn::NegMulAdd(p.v, sin, hn::Mul(p.u, cos)), hn::MulAdd(p.u, sin, hn::Mul(p.v, cos))};
}

template <typename T>
struct Halves {
  T* u;
  T* v;
};

// (u[i], v[i]) for i < count; the output may be the input.
template <typename T>
HWY_INLINE void rotate_halves(Halves<const T> x, Halves<T> out, const float* cos, const float* sin,
                              std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const std::int64_t left = count - i;
    const Pair p = turned({load_up_to(x.u + i, left), load_up_to(x.v + i, left)}, load_up_to(cos + i, left),
                          load_up_to(sin + i, left));
    store_up_to(p.u, out.u + i, left);
    store_up_to(p.v, out.v + i, left);
  }
}

// (x[2i], x[2i + 1]) for i < count; the output may be the input.
template <typename T>
HWY_INLINE void rotate_interleaved(const T* x, T* out, const float* cos, const float* sin, std::int64_t count) {
  HWY_ALIGN float both[2 * kLanes];
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const std::int64_t left = count - i;
    const std::int64_t second = 2 * left - kLanes;  // elements beyond the first vector
    store(load_up_to(x + 2 * i, 2 * left), both);
    store(second > 0 ? load_up_to(x + 2 * i + kLanes, second) : zeros(), both + kLanes);
    Pair p;
    hn::LoadInterleaved2(kFloats, both, p.u, p.v);
    p = turned(p, load_up_to(cos + i, left), load_up_to(sin + i, left));
    hn::StoreInterleaved2(p.u, p.v, kFloats, both);
    store_up_to(load(both), out + 2 * i, 2 * left);
    if (second > 0) store_up_to(load(both + kLanes), out + 2 * i + kLanes, second);
  }
}

}  // namespace
}  // namespace sluice::SLUICE_LEVEL

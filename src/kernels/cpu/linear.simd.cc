// Dot products in register tiles: lanes run along K, a tile is a few rows of x by a few rows of the weight.
//
// Few rows of x: the weight is widened in registers, once for all of them, straight from the mapped file, while the
// next block of it is prefetched. Many: a strip of kOuts weight rows by 1024 is widened once into a first-level-cache
// buffer that all tiles of rows pass over. Either way an output's sum is linear.h's.
#include <hwy/highway.h>

#include <cstring>

#include "kernels/cpu/linear_core.h"

namespace sluice {
namespace SLUICE_LEVEL {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using Vec = hn::Vec<F32>;
constexpr F32 kF32;
constexpr std::int64_t kLanes = HWY_LANES(float);
constexpr std::int64_t kBlock = 1024;  // elements of K between two reductions of the lanes: part of the definition
constexpr bool kWide = kLanes == 16;   // 32 registers
constexpr int kOuts = kWide ? 8 : 4;   // of the widened strip
constexpr int kRows = 3;               // of a tile over the strip
constexpr int kDirectRows = kWide ? 12 : 6;

HWY_INLINE Vec widen(const float* p) { return hn::LoadU(kF32, p); }
template <typename T>
HWY_INLINE Vec widen(const T* p) {
  return hn::PromoteTo(kF32, hn::LoadU(hn::Rebind<T, F32>(), p));
}

// The first `count` < kLanes elements, zeros after them.
template <typename T>
HWY_INLINE Vec widen_tail(const T* p, std::int64_t count) {
  alignas(64) T padded[kLanes];
  std::memset(static_cast<void*>(padded), 0, sizeof(padded));
  std::memcpy(static_cast<void*>(padded), static_cast<const void*>(p), static_cast<std::size_t>(count) * sizeof(T));
  return widen(padded);
}

// The sums of four vectors' lanes. Within 128 bits (l0+l2)+(l1+l3); then upper halves are added to lower ones.
HWY_INLINE hn::Vec128<float> fold(hn::Vec128<float> v) { return v; }
template <class V>
HWY_INLINE hn::Vec128<float> fold(V v) {
  const hn::DFromV<V> d;
  const hn::Half<decltype(d)> half;
  return fold(hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
}

HWY_INLINE hn::Vec128<float> sum_lanes(Vec a, Vec b, Vec c, Vec d) {
  const hn::RepartitionToWide<F32> pairs;
  const auto ab = hn::BitCast(pairs, hn::Add(hn::InterleaveLower(a, b), hn::InterleaveUpper(kF32, a, b)));
  const auto cd = hn::BitCast(pairs, hn::Add(hn::InterleaveLower(c, d), hn::InterleaveUpper(kF32, c, d)));
  const Vec lower = hn::BitCast(kF32, hn::InterleaveLower(ab, cd));
  const Vec upper = hn::BitCast(kF32, hn::InterleaveUpper(pairs, ab, cd));
  return fold(hn::Add(lower, upper));
}

// Where a tile's operands lie. Row r of x is at x[r]. The N lines of the weight that step k needs are at
// w + n * out_stride + k * depth_stride: rows of a matrix (depth_stride 1), or a widened strip, where the N vectors of
// a step lie together (out_stride kLanes, depth_stride N).
template <typename T, int R>
struct Operands {
  const float* x[R];
  const T* w;
  std::int64_t out_stride;  // elements
  std::int64_t count;       // elements of this block of K
};

template <int R, int N>
struct Tile {
  Vec sum[R][N];
};

// Keeps a vector in a register: compilers fold a load into each of the multiplications that use it.
HWY_INLINE void pin(Vec& v) { asm("" : "+v"(v.raw)); }

template <int R, int N>
HWY_INLINE void clear(Tile<R, N>& tile) {
  const Vec zero = hn::Zero(kF32);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) tile.sum[r][n] = zero;
  }
}

template <int R, int N, class LoadX, class LoadW>
HWY_INLINE void step(Tile<R, N>& tile, LoadX load_x, LoadW load_w) {
  Vec x[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) x[r] = load_x(r);
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) {
    Vec w = load_w(n);
    pin(w);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) tile.sum[r][n] = hn::MulAdd(x[r], w, tile.sum[r][n]);
  }
}

// What becomes of a tile's sums: y = or += them.
struct Target {
  float* y;
  std::int64_t stride;  // elements
  bool first;           // block of K
};

template <int R, int N>
HWY_INLINE void write(const Tile<R, N>& tile, const Target& target) {
  const hn::Full128<float> d4;
  const Vec zero = hn::Zero(kF32);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    float* y = target.y + r * target.stride;
    if constexpr (N == 1) {
      const float sum = hn::GetLane(sum_lanes(tile.sum[r][0], zero, zero, zero));
      *y = target.first ? sum : *y + sum;
    } else {
#pragma GCC unroll 8
      for (int n = 0; n < N; n += 4) {
        const auto sums = sum_lanes(tile.sum[r][n], tile.sum[r][n + 1], tile.sum[r][n + 2], tile.sum[r][n + 3]);
        hn::StoreU(target.first ? sums : hn::Add(hn::LoadU(d4, y + n), sums), d4, y + n);
      }
    }
  }
}

HWY_INLINE const float* row_of_x(const LinearBlock& block, std::int64_t m) {
  return block.x + (block.x_rows ? block.x_rows[m] : m) * block.x_stride;
}

// One block of K of R rows of x against N rows of a weight, widened in registers. `ahead`: elements from here to the
// weight that is read next, to be prefetched.
template <typename T, int R, int N>
HWY_NOINLINE void direct_tile(const Operands<T, R>& o, std::int64_t ahead, const Target& target) {
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));
  Tile<R, N> tile;
  clear(tile);
  std::int64_t k = 0;
  for (; k + kLine <= o.count; k += kLine) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) __builtin_prefetch(o.w + n * o.out_stride + k + ahead);
#pragma GCC unroll 4
    for (std::int64_t i = k; i < k + kLine; i += kLanes) {
      step(
          tile, [&](int r) HWY_ATTR { return hn::LoadU(kF32, o.x[r] + i); },
          [&](int n) HWY_ATTR { return widen(o.w + n * o.out_stride + i); });
    }
  }
  for (; k + kLanes <= o.count; k += kLanes) {
    step(
        tile, [&](int r) HWY_ATTR { return hn::LoadU(kF32, o.x[r] + k); },
        [&](int n) HWY_ATTR { return widen(o.w + n * o.out_stride + k); });
  }
  if (k < o.count) {
    step(
        tile, [&](int r) HWY_ATTR { return widen_tail(o.x[r] + k, o.count - k); },
        [&](int n) HWY_ATTR { return widen_tail(o.w + n * o.out_stride + k, o.count - k); });
  }
  write(tile, target);
}

// Where in the product a strip of outputs is at work.
struct Place {
  std::int64_t out;    // first output
  std::int64_t k;      // first element of the block of K
  std::int64_t ahead;  // see direct_tile
};

template <typename T, int R, int N>
HWY_INLINE void direct_rows(const LinearBlock& block, const Place& at, std::int64_t m) {
  const std::int64_t depth = block.weight.cols;
  Operands<T, R> o;
  for (int r = 0; r < R; ++r) o.x[r] = row_of_x(block, m + r) + at.k;
  o.w = reinterpret_cast<const T*>(block.weight.bytes) + at.out * depth + at.k;
  o.out_stride = depth;
  o.count = depth - at.k < kBlock ? depth - at.k : kBlock;
  direct_tile<T, R, N>(o, at.ahead, {block.y + m * block.y_stride + at.out, block.y_stride, at.k == 0});
}

// All rows of x, as few tiles as can be and none of a single row when it can be avoided.
template <typename T, int N>
HWY_INLINE void direct_group(const LinearBlock& block, const Place& at) {
  constexpr std::int64_t kMost = N == 8 ? (kWide ? 3 : 1) : (kWide ? 6 : 3);
  for (std::int64_t m = 0; m < block.rows;) {
    const std::int64_t tiles = (block.rows - m + kMost - 1) / kMost;
    const std::int64_t now = (block.rows - m + tiles - 1) / tiles;
    if constexpr (N < 8 && kWide) {
      if (now == 6) direct_rows<T, 6, N>(block, at, m);
      if (now == 5) direct_rows<T, 5, N>(block, at, m);
      if (now == 4) direct_rows<T, 4, N>(block, at, m);
    }
    if constexpr (N < 8 || kWide) {
      if (now == 3) direct_rows<T, 3, N>(block, at, m);
      if (now == 2) direct_rows<T, 2, N>(block, at, m);
    }
    if (now == 1) direct_rows<T, 1, N>(block, at, m);
    m += now;
  }
}

// Outputs [first, ...) in strips of N as far as whole strips go; returns the first output not done.
template <typename T, int N>
std::int64_t direct_strips(const LinearBlock& block, std::int64_t first) {
  const std::int64_t depth = block.weight.cols;
  std::int64_t n = first;
  for (; n + N <= block.weight.rows; n += N) {
    for (std::int64_t k = 0; k < depth; k += kBlock) {
      direct_group<T, N>(block, {n, k, k + kBlock < depth ? kBlock : N * depth - k});
    }
  }
  return n;
}

// A strip of kOuts weight rows by one block of K, widened: [step][out][lane] f32.
struct alignas(64) Strip {
  float w[kBlock * kOuts];
};

template <typename T>
HWY_INLINE void widen_strip(const Operands<T, 1>& o, Strip& strip) {
  for (std::int64_t n = 0; n < kOuts; ++n) {
    const T* row = o.w + n * o.out_stride;
    float* to = strip.w + n * kLanes;
    std::int64_t k = 0;
    for (; k + kLanes <= o.count; k += kLanes) hn::Store(widen(row + k), kF32, to + k * kOuts);
    if (k < o.count) hn::Store(widen_tail(row + k, o.count - k), kF32, to + k * kOuts);
  }
}

// Lines of the weight to be fetched into the second-level cache, a share with each tile of rows.
struct Ahead {
  const std::byte* row = nullptr;
  std::int64_t stride = 0;  // bytes
  std::int64_t lines = 0;   // a row
  std::int64_t rows = 0;
  std::int64_t line = 0;

  HWY_INLINE void fetch(std::int64_t count) {
    for (; count > 0 && rows > 0; --count) {
      __builtin_prefetch(row + line * 64, 0, 2);
      if (++line == lines) {
        line = 0;
        row += stride;
        --rows;
      }
    }
  }
};

template <int R>
HWY_NOINLINE void strip_tile(const Operands<float, R>& o, const Target& target) {
  Tile<R, kOuts> tile;
  clear(tile);
  std::int64_t k = 0;
  const float* w = o.w;
  for (; k + kLanes <= o.count; k += kLanes, w += kOuts * kLanes) {
    step(
        tile, [&](int r) HWY_ATTR { return hn::LoadU(kF32, o.x[r] + k); },
        [&](int n) HWY_ATTR { return hn::Load(kF32, w + n * kLanes); });
  }
  if (k < o.count) {
    step(
        tile, [&](int r) HWY_ATTR { return widen_tail(o.x[r] + k, o.count - k); },
        [&](int n) HWY_ATTR { return hn::Load(kF32, w + n * kLanes); });
  }
  write(tile, target);
}

template <int R>
HWY_INLINE void strip_rows(const LinearBlock& block, const Place& at, std::int64_t m, const Strip& strip) {
  const std::int64_t depth = block.weight.cols;
  Operands<float, R> o;
  for (int r = 0; r < R; ++r) o.x[r] = row_of_x(block, m + r) + at.k;
  o.w = strip.w;
  o.out_stride = kLanes;
  o.count = depth - at.k < kBlock ? depth - at.k : kBlock;
  strip_tile<R>(o, {block.y + m * block.y_stride + at.out, block.y_stride, at.k == 0});
}

template <typename T>
HWY_INLINE void strip_group(const LinearBlock& block, const Place& at, Ahead ahead) {
  const std::int64_t depth = block.weight.cols;
  Operands<T, 1> o;
  o.w = reinterpret_cast<const T*>(block.weight.bytes) + at.out * depth + at.k;
  o.out_stride = depth;
  o.count = depth - at.k < kBlock ? depth - at.k : kBlock;
  Strip strip;
  widen_strip(o, strip);
  const std::int64_t share = ahead.lines * ahead.rows * kRows / block.rows + 1;
  std::int64_t m = 0;
  for (; m + kRows <= block.rows; m += kRows) {
    ahead.fetch(share);
    strip_rows<kRows>(block, at, m, strip);
  }
  for (; m < block.rows; ++m) strip_rows<1>(block, at, m, strip);
}

// As direct_strips, for many rows: blocks of K outermost, so that x's block stays in the second-level cache.
template <typename T>
std::int64_t widened_strips(const LinearBlock& block) {
  const std::int64_t depth = block.weight.cols;
  const std::int64_t outs = block.weight.rows / kOuts * kOuts;
  Ahead ahead;
  ahead.stride = depth * static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t k = 0; k < depth; k += kBlock) {
    const std::int64_t count = depth - k < kBlock ? depth - k : kBlock;
    ahead.lines = (count * static_cast<std::int64_t>(sizeof(T)) + 63) / 64;
    for (std::int64_t n = 0; n < outs; n += kOuts) {
      ahead.row = block.weight.bytes + ((n + kOuts) * depth + k) * static_cast<std::int64_t>(sizeof(T));
      ahead.rows = n + kOuts < outs ? kOuts : 0;
      strip_group<T>(block, {n, k, 0}, ahead);
    }
  }
  return outs;
}

template <typename T>
void run_block(const LinearBlock& block) {
  std::int64_t n = 0;
  if (block.rows > kDirectRows) n = widened_strips<T>(block);
  if (block.rows <= (kWide ? 3 : 1)) n = direct_strips<T, 8>(block, n);
  n = direct_strips<T, 4>(block, n);
  direct_strips<T, 1>(block, n);
}

void finish(const LinearBlock& block) {
  const bool empty = block.weight.cols == 0;
  if (!empty && !block.bias) return;
  for (std::int64_t m = 0; m < block.rows; ++m) {
    float* y = block.y + m * block.y_stride;
    if (empty) std::memset(y, 0, static_cast<std::size_t>(block.weight.rows) * sizeof(float));
    if (!block.bias) continue;
    std::int64_t n = 0;
    for (; n + kLanes <= block.weight.rows; n += kLanes) {
      hn::StoreU(hn::Add(hn::LoadU(kF32, y + n), hn::LoadU(kF32, block.bias + n)), kF32, y + n);
    }
    for (; n < block.weight.rows; ++n) {
      float bias;
      std::memcpy(&bias, reinterpret_cast<const std::byte*>(block.bias) + n * 4, sizeof(bias));
      y[n] += bias;
    }
  }
}

}  // namespace

void linear_block(const LinearBlock& block) noexcept {
  if (block.rows <= 0 || block.weight.rows <= 0) return;
  switch (block.weight.format) {
    case WeightFormat::f32:
      run_block<float>(block);
      break;
    case WeightFormat::f16:
      run_block<hwy::float16_t>(block);
      break;
    case WeightFormat::bf16:
      run_block<hwy::bfloat16_t>(block);
      break;
  }
  finish(block);
}

}  // namespace SLUICE_LEVEL
}  // namespace sluice

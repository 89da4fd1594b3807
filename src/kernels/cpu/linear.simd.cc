// Dot products in register tiles: eight lanes run along K, a tile is a few rows of x by a few rows of the weight. A
// 512-bit register holds the eight lanes of two outputs, so that the sums, and their bits, are those of 256 bits.
//
// Few rows of x: the weight is widened in registers, once for all of them, straight from the mapped file, while the next
// block of it is prefetched. Many: a strip of eight weight rows by a block of K is widened once into a first-level-cache
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
constexpr std::int64_t kVector = HWY_LANES(float);
constexpr std::int64_t kLanes = 8;    // along K: part of the definition, like kBlock
constexpr std::int64_t kBlock = 512;  // elements of K between two reductions of the lanes
constexpr bool kWide = kVector == 16;
constexpr int kOuts = kWide ? 8 : 4;             // of a tile over the weight
constexpr int kStripOuts = 8;                    // of a widened strip: a tile at 512 bits, two side by side at 256
constexpr int kRows = kWide ? 6 : 3;             // of any tile, at most
constexpr std::int64_t kDirectRows = 3 * kRows;  // up to here the weight is widened in registers

// Eight elements of K from memory, for each output of a vector.
template <typename T>
using Eight = hn::Simd<T, 8, 0>;

#if HWY_TARGET == HWY_AVX3
HWY_INLINE Vec spread(const float* x) { return Vec{_mm512_broadcast_f32x8(_mm256_loadu_ps(x))}; }

template <typename T>
HWY_INLINE Vec widen(const T* a, const T* b) {
  const hn::Simd<T, 16, 0> d16;
  return hn::PromoteTo(kF32, hn::Combine(d16, hn::LoadU(Eight<T>(), b), hn::LoadU(Eight<T>(), a)));
}
HWY_INLINE Vec widen(const float* a, const float* b) {
  return hn::Combine(kF32, hn::LoadU(Eight<float>(), b), hn::LoadU(Eight<float>(), a));
}
#else
HWY_INLINE Vec spread(const float* x) { return hn::LoadU(kF32, x); }

template <typename T>
HWY_INLINE Vec widen(const T* a, const T*) {
  return hn::PromoteTo(kF32, hn::LoadU(Eight<T>(), a));
}
HWY_INLINE Vec widen(const float* a, const float*) { return hn::LoadU(kF32, a); }
#endif

// The first `count` < 8 elements, zeros after them.
template <typename T>
struct Padded {
  alignas(32) T values[kLanes];
  HWY_INLINE Padded(const T* from, std::int64_t count) {
    std::memset(static_cast<void*>(values), 0, sizeof(values));
    std::memcpy(static_cast<void*>(values), static_cast<const void*>(from),
                static_cast<std::size_t>(count) * sizeof(T));
  }
};

// A tile of R rows by P vectors of outputs. A vector of 512 bits holds output p and output p + P when kPaired, else
// output p twice.
template <int R, int P, bool kPaired>
struct Tile {
  static constexpr int kTileOuts = kPaired && kWide ? 2 * P : P;
  static constexpr int kMate = kPaired && kWide ? P : 0;  // from an output to the one that shares its vector
  Vec sum[R][P];
};

// Where a tile's operands lie: row r of x at x[r], output n of the weight at w + n * stride.
template <typename T, int R>
struct Operands {
  const float* x[R];
  const T* w;
  std::int64_t stride;  // elements
  std::int64_t count;   // elements of this block of K
};

// Keeps a vector in a register: compilers fold a load into each of the multiplications that use it.
HWY_INLINE void pin(Vec& v) { asm("" : "+v"(v.raw)); }

template <int R, int P, bool kPaired>
HWY_INLINE void clear(Tile<R, P, kPaired>& tile) {
  const Vec zero = hn::Zero(kF32);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) tile.sum[r][p] = zero;
  }
}

template <int R, int P, bool kPaired, class LoadX, class LoadW>
HWY_INLINE void step(Tile<R, P, kPaired>& tile, LoadX load_x, LoadW load_w) {
  Vec x[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) x[r] = load_x(r);
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
    Vec w = load_w(p);
    pin(w);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) tile.sum[r][p] = hn::MulAdd(x[r], w, tile.sum[r][p]);
  }
}

// The sums of four vectors' lanes within 128 bits, (l0+l2)+(l1+l3): in each, [a, b, c, d].
HWY_INLINE Vec sum_quads(Vec a, Vec b, Vec c, Vec d) {
  const hn::RepartitionToWide<F32> pairs;
  const auto ab = hn::BitCast(pairs, hn::Add(hn::InterleaveLower(a, b), hn::InterleaveUpper(kF32, a, b)));
  const auto cd = hn::BitCast(pairs, hn::Add(hn::InterleaveLower(c, d), hn::InterleaveUpper(kF32, c, d)));
  const Vec lower = hn::BitCast(kF32, hn::InterleaveLower(ab, cd));
  const Vec upper = hn::BitCast(kF32, hn::InterleaveUpper(pairs, ab, cd));
  return hn::Add(lower, upper);
}

// What becomes of a tile's sums: y = or += them.
struct Target {
  float* y;
  std::int64_t stride;  // elements
  bool first;           // block of K
};

template <class D>
HWY_INLINE void put(const Target& target, float* y, D d, hn::Vec<D> sums) {
  hn::StoreU(target.first ? sums : hn::Add(hn::LoadU(d, y), sums), d, y);
}

// Adds the two quads of eight lanes, for the outputs of four vectors: four of them, or eight when the vectors hold pairs.
template <bool kPaired>
HWY_INLINE void put_quads(const Target& target, float* y, Vec quads) {
  const hn::Half<F32> half;
  const auto lower = hn::LowerHalf(half, quads);
#if HWY_TARGET == HWY_AVX3
  if constexpr (kPaired) {
    const auto upper = hn::UpperHalf(half, quads);
    put(target, y, half, hn::Add(hn::ConcatLowerLower(half, upper, lower), hn::ConcatUpperUpper(half, upper, lower)));
  } else {
    const hn::Half<decltype(half)> quarter;
    put(target, y, quarter, hn::Add(hn::LowerHalf(quarter, lower), hn::UpperHalf(quarter, lower)));
  }
#else
  put(target, y, half, hn::Add(lower, hn::UpperHalf(half, quads)));
#endif
}

template <int R, int P, bool kPaired>
HWY_INLINE void write(const Tile<R, P, kPaired>& tile, const Target& target) {
  const Vec zero = hn::Zero(kF32);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    float* y = target.y + r * target.stride;
    if constexpr (P == 1) {
      float sums[4];
      put_quads<false>({sums, 0, true}, sums, sum_quads(tile.sum[r][0], zero, zero, zero));
      *y = target.first ? sums[0] : *y + sums[0];
    } else {
#pragma GCC unroll 2
      for (int p = 0; p < P; p += 4) {
        put_quads<kPaired>(target, y + p,
                           sum_quads(tile.sum[r][p], tile.sum[r][p + 1], tile.sum[r][p + 2], tile.sum[r][p + 3]));
      }
    }
  }
}

HWY_INLINE std::int64_t block_count(std::int64_t depth, std::int64_t k) {
  return depth - k < kBlock ? depth - k : kBlock;
}

// What a tile fetches while it runs: some rows of the weight where it is read next.
template <typename T>
struct Next {
  const T* w;           // the first of them
  std::int64_t stride;  // elements from row to row
};

// One block of K of R rows of x against some rows of a weight, widened in registers, fetching kFetch rows of `next`.
template <typename T, int R, int P, bool kPaired, int kFetch>
HWY_NOINLINE void direct_tile(const Operands<T, R>& o, const Next<T>& next, const Target& target) {
  using Sums = Tile<R, P, kPaired>;
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));
  Sums tile;
  clear(tile);
  std::int64_t k = 0;
  const auto whole_step = [&](std::int64_t at) HWY_ATTR {
    step(
        tile, [&](int r) HWY_ATTR { return spread(o.x[r] + at); },
        [&](int p) HWY_ATTR { return widen(o.w + p * o.stride + at, o.w + (p + Sums::kMate) * o.stride + at); });
  };
  for (; k + kLine <= o.count; k += kLine) {
#pragma GCC unroll 8
    for (int n = 0; n < kFetch; ++n) __builtin_prefetch(next.w + n * next.stride + k);
#pragma GCC unroll 4
    for (std::int64_t i = k; i < k + kLine; i += kLanes) whole_step(i);
  }
  for (; k + kLanes <= o.count; k += kLanes) whole_step(k);
  if (k < o.count) {
    const auto tail = [&](const T* from) HWY_ATTR { return Padded<T>(from + k, o.count - k); };
    step(
        tile, [&](int r) HWY_ATTR { return spread(Padded<float>(o.x[r] + k, o.count - k).values); },
        [&](int p) HWY_ATTR {
          return widen(tail(o.w + p * o.stride).values, tail(o.w + (p + Sums::kMate) * o.stride).values);
        });
  }
  write(tile, target);
}

// Where in the product a strip of outputs is at work.
struct Place {
  std::int64_t out;               // first output
  std::int64_t k;                 // first element of the block of K
  std::int64_t spacing = 1;       // from one output of a tile to the next
  std::int64_t next_out = kOuts;  // of the tile after it, counted from `out`
};

HWY_INLINE Target target_of(const LinearBlock& block, const Place& at, std::int64_t m) {
  return {block.y + m * block.y_stride + at.out, block.y_stride, at.k == 0};
}

// Rows [m, m + R), which are group `group` of kGroups that run over the same weights: each fetches its share of the next.
template <typename T, int R, int P, bool kPaired, int kGroups = 1>
HWY_INLINE void direct_rows(const LinearBlock& block, const Place& at, std::int64_t m, std::int64_t group = 0) {
  constexpr int kTileOuts = Tile<R, P, kPaired>::kTileOuts;
  constexpr int kFetch = (kTileOuts + kGroups - 1) / kGroups;
  const std::int64_t depth = block.weight.cols;
  Operands<T, R> o;
  for (int r = 0; r < R; ++r) o.x[r] = row_of_x(block, m + r) + at.k;
  o.w = reinterpret_cast<const T*>(block.weight.bytes) + at.out * depth + at.k;
  o.stride = at.spacing * depth;
  o.count = block_count(depth, at.k);
  const std::int64_t ahead = at.k + kBlock < depth ? kBlock : at.next_out * depth - at.k;
  const Next<T> next{o.w + ahead + group * kFetch * o.stride, o.stride};
  direct_tile<T, R, P, kPaired, kFetch>(o, next, target_of(block, at, m));
}

// Four vectors of outputs by all rows of x, in kGroups tiles of like size.
template <typename T, int kGroups>
HWY_INLINE void direct_groups(const LinearBlock& block, const Place& at) {
  std::int64_t m = 0;
  for (std::int64_t group = 0; group < kGroups; ++group) {
    const std::int64_t left = kGroups - group;
    const std::int64_t now = (block.rows - m + left - 1) / left;
    if constexpr (kRows == 6) {
      if (now == 6) direct_rows<T, 6, 4, true, kGroups>(block, at, m, group);
      if (now == 5) direct_rows<T, 5, 4, true, kGroups>(block, at, m, group);
      if (now == 4) direct_rows<T, 4, 4, true, kGroups>(block, at, m, group);
    }
    if constexpr (kRows == 3 || kGroups < 3) {
      if (now == 3) direct_rows<T, 3, 4, true, kGroups>(block, at, m, group);
    }
    if constexpr (kRows == 3 || kGroups == 1) {
      if (now == 2) direct_rows<T, 2, 4, true, kGroups>(block, at, m, group);
    }
    if constexpr (kGroups == 1) {
      if (now == 1) direct_rows<T, 1, 4, true, kGroups>(block, at, m, group);
    }
    m += now;
  }
}

// One output by all rows of x.
template <typename T>
void direct_output(const LinearBlock& block, std::int64_t out) {
  for (std::int64_t k = 0; k < block.weight.cols; k += kBlock) {
    std::int64_t m = 0;
    for (; m + kRows <= block.rows; m += kRows) direct_rows<T, kRows, 1, false>(block, {out, k}, m);
    for (; m < block.rows; ++m) direct_rows<T, 1, 1, false>(block, {out, k}, m);
  }
}

// kTileOuts outputs by all rows of x, a block of K.
template <typename T, int kGroups, int kTileOuts>
HWY_INLINE void direct_tiles(const LinearBlock& block, const Place& at) {
  if constexpr (kTileOuts == kOuts) {
    direct_groups<T, kGroups>(block, at);
  } else {
    direct_rows<T, 1, kTileOuts, true>(block, at, 0);
  }
}

// Two rows of a weight in one page are two streams to the processor's prefetcher, which then follows neither. Outputs
// so far apart lie in pages of their own.
template <typename T>
std::int64_t page_spacing(std::int64_t depth) {
  constexpr std::int64_t kPage = 4096 / static_cast<std::int64_t>(sizeof(T));
  constexpr std::int64_t kMost = 8;
  if (depth == 0) return 1;
  const std::int64_t spacing = (kPage + depth - 1) / depth;
  return spacing < kMost ? spacing : kMost;
}

// Outputs [first, first + spacing * kTileOuts), those of a tile `spacing` apart.
template <typename T, int kGroups, int kTileOuts>
void spaced_tiles(const LinearBlock& block, std::int64_t first, std::int64_t spacing) {
  const std::int64_t depth = block.weight.cols;
  float sums[kDirectRows * kTileOuts];  // [rows, kTileOuts]
  LinearBlock spaced = block;
  spaced.y = sums;
  spaced.y_stride = kTileOuts;
  for (std::int64_t i = 0; i < spacing; ++i) {
    spaced.weight.bytes = block.weight.bytes + (first + i) * depth * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t next = i + 1 < spacing ? 1 : spacing * kTileOuts - i;
    for (std::int64_t k = 0; k < depth; k += kBlock) direct_tiles<T, kGroups, kTileOuts>(spaced, {0, k, spacing, next});
    for (std::int64_t m = 0; m < block.rows; ++m) {
      float* y = block.y + m * block.y_stride + first + i;
      for (std::int64_t p = 0; p < kTileOuts; ++p) y[p * spacing] = sums[m * kTileOuts + p];
    }
  }
}

// Whole tiles of outputs from `n` on; returns where they end.
template <typename T, int kGroups, int kTileOuts>
std::int64_t direct_strips(const LinearBlock& block, std::int64_t n) {
  const std::int64_t depth = block.weight.cols, outs = block.weight.rows;
  const std::int64_t spacing = page_spacing<T>(depth);
  for (; spacing > 1 && n + spacing * kTileOuts <= outs; n += spacing * kTileOuts)
    spaced_tiles<T, kGroups, kTileOuts>(block, n, spacing);
  for (; n + kTileOuts <= outs; n += kTileOuts) {
    for (std::int64_t k = 0; k < depth; k += kBlock) direct_tiles<T, kGroups, kTileOuts>(block, {n, k, 1, kTileOuts});
  }
  return n;
}

// All outputs, the weight widened in registers. One row of x takes eight outputs at a time whatever the vector.
template <typename T>
void direct_outputs(const LinearBlock& block) {
  std::int64_t n = 0;
  if (block.rows == 1) n = direct_strips<T, 1, 8>(block, n);
  if (block.rows <= kRows) {
    n = direct_strips<T, 1, kOuts>(block, n);
  } else if (block.rows <= 2 * kRows) {
    n = direct_strips<T, 2, kOuts>(block, n);
  } else {
    n = direct_strips<T, 3, kOuts>(block, n);
  }
  for (; n < block.weight.rows; ++n) direct_output<T>(block, n);
}

// A strip of weight rows by one block of K, widened: [tile][step][vector] f32, zero-padded to whole steps.
struct alignas(64) Strip {
  static constexpr std::int64_t kTiles = kStripOuts / kOuts;
  float w[kTiles][kBlock * kOuts];
};

// The rows of one tile.
template <typename T>
HWY_INLINE void widen_rows(const Operands<T, 1>& o, float* strip) {
  for (std::int64_t p = 0; p < 4; ++p) {
    const T* a = o.w + p * o.stride;
    const T* b = a + Tile<1, 4, true>::kMate * o.stride;
    float* to = strip + p * kVector;
    std::int64_t k = 0;
#pragma GCC unroll 4
    for (; k + kLanes <= o.count; k += kLanes, to += 4 * kVector) hn::Store(widen(a + k, b + k), kF32, to);
    if (k < o.count) {
      hn::Store(widen(Padded<T>(a + k, o.count - k).values, Padded<T>(b + k, o.count - k).values), kF32, to);
    }
  }
}

template <int R>
HWY_NOINLINE void strip_tile(const Operands<float, R>& o, const Target& target) {
  Tile<R, 4, true> tile;
  clear(tile);
  std::int64_t k = 0;
  const float* w = o.w;
  for (; k + kLanes <= o.count; k += kLanes, w += 4 * kVector) {
    step(
        tile, [&](int r) HWY_ATTR { return spread(o.x[r] + k); },
        [&](int p) HWY_ATTR { return hn::Load(kF32, w + p * kVector); });
  }
  if (k < o.count) {
    step(
        tile, [&](int r) HWY_ATTR { return spread(Padded<float>(o.x[r] + k, o.count - k).values); },
        [&](int p) HWY_ATTR { return hn::Load(kF32, w + p * kVector); });
  }
  write(tile, target);
}

// The strip of weights that comes next, on its way into the second-level cache while the tiles of rows pass over this one:
// each fetches its share of the columns of lines before it starts. A loop without surprises, as a branch foretold wrongly
// costs as much as several lines.
class Ahead {
 public:
  HWY_INLINE Ahead(const LinearBlock& block, const Place& next, std::int64_t element_bytes, std::int64_t turns)
      : at_(block.weight.bytes + (next.out * block.weight.cols + next.k) * element_bytes),
        stride_(block.weight.cols * element_bytes),
        left_((block_count(block.weight.cols, next.k) * element_bytes + 63) / 64),
        share_((left_ + turns - 1) / turns) {}
  HWY_INLINE void fetch() {
    if (left_ <= 0) return;
    for (std::int64_t i = 0; i < share_; ++i, at_ += 64) {
#pragma GCC unroll 8
      for (int n = 0; n < kStripOuts; ++n) __builtin_prefetch(at_ + n * stride_, 0, 2);
    }
    left_ -= share_;
  }

 private:
  const std::byte* at_;
  std::int64_t stride_;  // bytes
  std::int64_t left_;    // columns
  std::int64_t share_;   // columns a turn
};

// A strip at work: `tiles` of it hold outputs.
struct Pass {
  Place at;
  const Strip& strip;
  std::int64_t tiles;
  Ahead ahead;
};

// Rows [first, end) in tiles of `size`, which is R or one or two less.
template <int R>
HWY_INLINE void strip_rows(const LinearBlock& block, Pass& pass, std::int64_t size, std::int64_t first,
                           std::int64_t end) {
  if constexpr (R > 1 && R > kRows - 2) {
    if (size != R) return strip_rows<R - 1>(block, pass, size, first, end);
  }
  for (std::int64_t m = first; m < end; m += R) {
    pass.ahead.fetch();
    Operands<float, R> o;
    for (int r = 0; r < R; ++r) o.x[r] = row_of_x(block, m + r) + pass.at.k;
    o.stride = 0;
    o.count = block_count(block.weight.cols, pass.at.k);
    for (std::int64_t t = 0; t < pass.tiles; ++t) {
      o.w = pass.strip.w[t];
      strip_tile<R>(o, target_of(block, {pass.at.out + t * kOuts, pass.at.k}, m));
    }
  }
}

template <typename T>
HWY_INLINE void strip_group(const LinearBlock& block, const Place& at, std::int64_t tiles, const Place& next) {
  const std::int64_t depth = block.weight.cols;
  Operands<T, 1> o;
  o.w = reinterpret_cast<const T*>(block.weight.bytes) + at.out * depth + at.k;
  o.stride = depth;
  o.count = block_count(depth, at.k);
  Strip strip;
  for (std::int64_t t = 0; t < tiles; ++t, o.w += kOuts * depth) widen_rows(o, strip.w[t]);
  // As many tiles of rows as it takes, of like size: a few of the larger size, then the rest.
  const std::int64_t turns = (block.rows + kRows - 1) / kRows;
  const std::int64_t size = block.rows / turns;
  const std::int64_t split = block.rows % turns * (size + 1);
  Pass pass{at, strip, tiles, {block, next, static_cast<std::int64_t>(sizeof(T)), turns}};
  strip_rows<kRows>(block, pass, size + 1, 0, split);
  strip_rows<kRows>(block, pass, size, split, block.rows);
}

// All outputs, the weight widened strip by strip. Blocks of K are outermost, so that x's stays in the second-level cache.
template <typename T>
void widened_outputs(const LinearBlock& block) {
  const std::int64_t depth = block.weight.cols;
  const std::int64_t outs = block.weight.rows / kOuts * kOuts;
  for (std::int64_t k = 0; k < depth; k += kBlock) {
    for (std::int64_t n = 0; n < outs; n += kStripOuts) {
      Place next{n + kStripOuts, k};
      if (next.out >= outs) next = k + kBlock < depth ? Place{0, k + kBlock} : Place{outs, 0};
      const std::int64_t left = (outs - n) / kOuts;
      strip_group<T>(block, {n, k}, left < Strip::kTiles ? left : Strip::kTiles, next);
    }
  }
  for (std::int64_t n = outs; n < block.weight.rows; ++n) direct_output<T>(block, n);
}

template <typename T>
void run_block(const LinearBlock& block) {
  return block.rows <= kDirectRows ? direct_outputs<T>(block) : widened_outputs<T>(block);
}

void finish(const LinearBlock& block) {
  const bool empty = block.weight.cols == 0;
  if (!empty && !block.bias) return;
  for (std::int64_t m = 0; m < block.rows; ++m) {
    float* y = block.y + m * block.y_stride;
    if (empty) std::memset(y, 0, static_cast<std::size_t>(block.weight.rows) * sizeof(float));
    if (!block.bias) continue;
    std::int64_t n = 0;
    for (; n + kVector <= block.weight.rows; n += kVector) {
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

// Dot products in AMX's tiles. A tile of the weight is sixteen of its rows by 32 elements of K, as they lie in the mapped
// file; a tile of x is 32 elements of K, in pairs, by up to sixteen rows, as pack_rows() leaves them: each f32 is the sum of
// three bf16, which take turns. Two tiles of the weight by two of x make four of sums, [outputs, rows] f32.
#include <hwy/highway.h>

#include <cmath>
#include <cstring>
#include <initializer_list>

#include "kernels/cpu/amx_config.h"
#include "kernels/cpu/linear_core.h"

namespace sluice::amx {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::RepartitionToWide<hn::ScalableTag<std::uint16_t>>;
using Floats = hn::Vec<F32>;
using Words = hn::Vec<U32>;
constexpr F32 kF32;
constexpr U32 kU32;

constexpr std::int64_t kRows = kTileRows;
constexpr std::int64_t kDepth = 32;        // elements of K of a tile
constexpr std::int64_t kParts = 3;         // bf16 of an f32
constexpr std::int64_t kPair = 2 * kRows;  // outputs, or rows, of two tiles
constexpr std::int64_t kBlock = 1024;      // elements of K that are summed in the tiles; part of the definition
constexpr std::int64_t kElement = 2;       // bytes of a bf16
constexpr std::int64_t kLine = 64;         // bytes of a row of a tile of weights

constexpr std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// The first `count` of sixteen elements; the others are read as zeros and left alone in memory.
HWY_INLINE Floats load_first(const float* from, std::int64_t count) {
  return hn::MaskedLoad(hn::FirstN(kF32, static_cast<std::size_t>(count)), kF32, from);
}
template <class D>
HWY_INLINE void store_first(D d, hn::Vec<D> v, std::int64_t count, hn::TFromD<D>* to) {
  hn::BlendedStore(v, hn::FirstN(d, static_cast<std::size_t>(count)), d, to);
}

// Sixteen vectors of sixteen words, transposed.
HWY_INLINE void transpose(Words (&v)[16]) {
  const hn::RepartitionToWide<U32> wide;
  Words t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = hn::InterleaveLower(kU32, v[i], v[i + 1]);
    t[i + 1] = hn::InterleaveUpper(kU32, v[i], v[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {  // four rows by four words in each 128-bit block
    const auto a = hn::BitCast(wide, t[i]), b = hn::BitCast(wide, t[i + 1]);
    const auto c = hn::BitCast(wide, t[i + 2]), d = hn::BitCast(wide, t[i + 3]);
    v[i] = hn::BitCast(kU32, hn::InterleaveLower(wide, a, c));
    v[i + 1] = hn::BitCast(kU32, hn::InterleaveUpper(wide, a, c));
    v[i + 2] = hn::BitCast(kU32, hn::InterleaveLower(wide, b, d));
    v[i + 3] = hn::BitCast(kU32, hn::InterleaveUpper(wide, b, d));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // four by four blocks
    const Words a = v[i], b = v[i + 4], c = v[i + 8], d = v[i + 12];
    const Words ab_even = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(b), a);
    const Words ab_odd = hn::OddEvenBlocks(b, hn::SwapAdjacentBlocks(a));
    const Words cd_even = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(d), c);
    const Words cd_odd = hn::OddEvenBlocks(d, hn::SwapAdjacentBlocks(c));
    t[i] = hn::ConcatLowerLower(kU32, cd_even, ab_even);
    t[i + 4] = hn::ConcatLowerLower(kU32, cd_odd, ab_odd);
    t[i + 8] = hn::ConcatUpperUpper(kU32, cd_even, ab_even);
    t[i + 12] = hn::ConcatUpperUpper(kU32, cd_odd, ab_odd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = t[i];
}

// Cuts sixteen f32 into what a bf16 holds of them, by truncation, and the rest, which is exact.
HWY_INLINE Words cut(Floats& x) {
  const Words upper = hn::And(hn::BitCast(kU32, x), hn::Set(kU32, 0xffff0000u));
  x = hn::Sub(x, hn::BitCast(kF32, upper));
  return upper;
}

// The upper halves of the words of a, then of b.
HWY_INLINE Words upper_halves(Words a, Words b) {
  const hn::Repartition<std::uint16_t, U32> halves;
  return hn::BitCast(kU32, hn::ConcatOdd(halves, hn::BitCast(halves, b), hn::BitCast(halves, a)));
}

constexpr std::int64_t padded(std::int64_t depth) { return (depth + kDepth - 1) / kDepth * kDepth; }

// Elements [k, k + 32) of rows [first, first + rows), zeros beyond `depth`: [part][pair of k][row] words.
HWY_INLINE void pack_step(const LinearBlock& block, std::int64_t first, std::int64_t rows, std::int64_t k,
                          std::uint32_t* to) {
  Words parts[kParts][kRows];
  const std::int64_t count = least(block.weight.cols - k, kDepth);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) {
      if (rows > 1) parts[0][r] = parts[1][r] = parts[2][r] = hn::Zero(kU32);
      continue;
    }
    const float* x = row_of_x(block, first + r) + k;
    Floats a = load_first(x, least(count, kRows));
    Floats b = count > kRows ? load_first(x + kRows, count - kRows) : hn::Zero(kF32);
#pragma GCC unroll 3
    for (int p = 0; p < kParts; ++p) {
      const Words lower = cut(a);
      parts[p][r] = upper_halves(lower, cut(b));
    }
  }
#pragma GCC unroll 3
  for (int p = 0; p < kParts; ++p) {
    if (rows > 1) transpose(parts[p]);
    if (rows == kRows) {
#pragma GCC unroll 16
      for (int j = 0; j < kRows; ++j) hn::Store(parts[p][j], kU32, to + (p * kRows + j) * kRows);
    } else if (rows == 1) {
      hn::StoreU(parts[p][0], kU32, to + p * kRows);
    } else {
      for (int j = 0; j < kRows; ++j) {
        store_first(kU32, parts[p][j], rows, to + (p * kRows + j) * rows);
      }
    }
  }
}

// Tiles 0..3 hold sums (0 and 1 of the first sixteen outputs, 2 and 3 of the others; 0 and 2 of the first panel), 4 and 5
// weights, 6 and 7 panels of x, of so many rows each.
TileConfig config_of(std::int64_t first, std::int64_t second) {
  TileConfig config;
  for (int i = 0; i < 8; ++i) config.rows[i] = second > 0 || (i != 1 && i != 3 && i != 7) ? kRows : 0;
  config.row_bytes[4] = config.row_bytes[5] = kLine;
  for (const int i : {0, 2, 6}) config.row_bytes[i] = static_cast<std::uint16_t>(4 * first);
  for (const int i : {1, 3, 7}) config.row_bytes[i] = static_cast<std::uint16_t>(4 * second);
  return config;
}

// One or two panels of up to sixteen packed rows.
struct Panels {
  const std::byte* x[2];  // each [step of K][part][pair of k][row] words
  std::int64_t rows[2];   // of each; the second has none when there is one
};

// Two tiles of the weight by a block of K, step by step.
struct Strip {
  const std::byte* w;
  std::int64_t row_bytes;   // from output to output of a tile
  std::int64_t tile_bytes;  // from tile to tile
  std::int64_t step_bytes;  // from step to step
  std::int64_t steps;
};

// With kCopy, the weight's tiles are also written to `copy`, [step][tile][row] lines: what is read from memory once is then at
// hand for the panels that follow.
template <int kPanels, bool kCopy>
HWY_INLINE void multiply_strip(const Strip& strip, const Panels& panels, std::byte* copy) {
  _tile_zero(0);
  _tile_zero(2);
  if constexpr (kPanels == 2) {
    _tile_zero(1);
    _tile_zero(3);
  }
  const std::int64_t stride0 = 4 * panels.rows[0], stride1 = 4 * panels.rows[1];
  const std::byte *x0 = panels.x[0], *x1 = panels.x[1], *w = strip.w;
  for (std::int64_t step = 0; step < strip.steps; ++step, w += strip.step_bytes) {
    _tile_loadd(4, w, strip.row_bytes);
    _tile_loadd(5, w + strip.tile_bytes, strip.row_bytes);
    if constexpr (kCopy) {
      _tile_stored(4, copy, kLine);
      _tile_stored(5, copy + kRows * kLine, kLine);
      copy += kPair * kLine;
    }
#pragma GCC unroll 3
    for (int p = 0; p < kParts; ++p) {
      _tile_loadd(6, x0, stride0);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kPanels == 2) {
        _tile_loadd(7, x1, stride1);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
        x1 += kRows * stride1;
      }
      x0 += kRows * stride0;
    }
  }
}

// Where the sums of a tile go, and how they end.
struct Target {
  const LinearBlock& block;
  std::int64_t out;      // first of up to sixteen
  std::int64_t spacing;  // from one to the next; not 1 for whole tiles alone
  std::int64_t row;      // first of the panel
  bool first;            // block of K: y = the sums, not += them
  bool last;             // the bias is added
};

HWY_INLINE Floats load_outs(const Target& t, const float* from, std::int64_t outs) {
  if (t.spacing == 1) return load_first(from, outs);
  const hn::RebindToSigned<F32> indices;
  return hn::GatherIndex(kF32, from, hn::Mul(hn::Iota(indices, 0), hn::Set(indices, static_cast<int>(t.spacing))));
}
HWY_INLINE void store_outs(const Target& t, Floats v, std::int64_t outs, float* to) {
  if (t.spacing == 1) return store_first(kF32, v, outs, to);
  const hn::RebindToSigned<F32> indices;
  hn::ScatterIndex(v, kF32, to, hn::Mul(hn::Iota(indices, 0), hn::Set(indices, static_cast<int>(t.spacing))));
}

// Sums that are not finite are taken again in f32: the cut of x may have made a NaN, of infinity less infinity or of a part
// that is zero by an infinite weight.
void mend(const Target& t, std::int64_t m, std::int64_t outs) {
  for (std::int64_t i = 0; i < outs; ++i) {
    const std::int64_t n = t.out + i * t.spacing;
    float& y = t.block.y[m * t.block.y_stride + n];
    if (std::isfinite(y)) continue;
    LinearBlock one;
    one.x = row_of_x(t.block, m);
    one.rows = 1;
    one.weight = weight_rows(t.block.weight, n, 1);
    one.y = &y;
    avx512::linear_block(one);
  }
}

// `sums` [16 outputs, rows] f32 of one panel.
HWY_INLINE void put(const Target& t, const float* sums, std::int64_t rows) {
  const std::int64_t outs = least((t.block.weight.rows - t.out + t.spacing - 1) / t.spacing, kRows);
  Words v[kRows];
  if (rows == 1) {
    v[0] = hn::LoadU(kU32, reinterpret_cast<const std::uint32_t*>(sums));
  } else {
#pragma GCC unroll 16
    for (int n = 0; n < kRows; ++n) {  // beyond the rows: the next output's, or what lies behind the tile
      v[n] = hn::LoadU(kU32, reinterpret_cast<const std::uint32_t*>(sums + n * rows));
    }
    transpose(v);
  }
  const float* bias = t.last && t.block.bias ? t.block.bias + t.out : nullptr;
  const Floats shift = bias ? load_outs(t, bias, outs) : hn::Zero(kF32);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) break;
    const std::int64_t m = t.row + r;
    float* y = t.block.y + m * t.block.y_stride + t.out;
    Floats sum = hn::BitCast(kF32, v[r]);
    if (!t.first) sum = hn::Add(sum, load_outs(t, y, outs));
    store_outs(t, sum, outs, y);
    if (!t.last) continue;
    if (!hn::AllTrue(kF32, hn::IsFinite(sum))) {
      mend(t, m, outs);
      sum = load_outs(t, y, outs);
    }
    if (bias) store_outs(t, hn::Add(sum, shift), outs, y);
  }
}

template <int kPanels, bool kCopy>
HWY_INLINE void multiply_panels(const Strip& strip, const Panels& panels, const Target& target, std::byte* copy) {
  alignas(64) float sums[2][kPanels][kRows * kRows + kRows];
  multiply_strip<kPanels, kCopy>(strip, panels, copy);
  _tile_stored(0, sums[0][0], 4 * panels.rows[0]);
  _tile_stored(2, sums[1][0], 4 * panels.rows[0]);
  if constexpr (kPanels == 2) {
    _tile_stored(1, sums[0][1], 4 * panels.rows[1]);
    _tile_stored(3, sums[1][1], 4 * panels.rows[1]);
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    Target t = target;
    t.out += half * kRows * t.spacing;
    if (t.out >= t.block.weight.rows) break;
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p, t.row += kRows) put(t, sums[half][p], panels.rows[p]);
  }
}

HWY_INLINE void multiply(const Strip& strip, const Panels& panels, const Target& target) {
  panels.rows[1] > 0 ? multiply_panels<2, false>(strip, panels, target, nullptr)
                     : multiply_panels<1, false>(strip, panels, target, nullptr);
}

// The rows of a block by its outputs, a block of K and a strip of 32 outputs at a time.
class Product {
 public:
  explicit Product(const LinearBlock& block)
      : block_(block), depth_(block.weight.cols), outs_(block.weight.rows), row_bytes_(depth_ * kElement) {}

  // Few rows, where the weight is read from memory once: from there straight into the tiles. Two rows of a weight in one
  // page are two streams to the processor's prefetcher, which then follows neither: the rows of a tile lie in pages of
  // their own, and behind each follows that of the next tile.
  void stream() const {
    configure(0);
    const std::int64_t spacing = (kPageBytes + row_bytes_ - 1) / row_bytes_, whole = depth_ % kDepth == 0 ? outs_ : 0;
    std::int64_t n = 0;
    for (; n + spacing * kPair <= whole; n += spacing * kPair) {
      for (std::int64_t i = 0; i < spacing; ++i) stream_strip(n + i, spacing);
    }
    for (; n + kPair <= whole; n += kPair) stream_strip(n, 1);
    for (; n < outs_; n += kPair) {
      for (std::int64_t k = 0; k < depth_; k += kBlock) pass_over(n, k);
    }
  }

  // Many rows: each strip of the weight is copied once, and all rows pass over it. Blocks of K are outermost, so that
  // those of x stay in the second-level cache.
  void pass() const {
    for (std::int64_t k = 0; k < depth_; k += kBlock) {
      for (std::int64_t n = 0; n < outs_; n += kPair) pass_over(n, k);
    }
  }

 private:
  static constexpr std::int64_t kStepBytes = kPair * kLine;

  const std::byte* weight(std::int64_t n) const { return block_.weight.bytes + n * row_bytes_; }

  // Of rows [m, m + 32), from element k on.
  Panels panels(std::int64_t m, std::int64_t k) const {
    const std::int64_t row_bytes = padded(depth_) * kParts * kElement;
    Panels p;
    for (std::int64_t i = 0; i < 2; ++i) {
      const std::int64_t row = m + i * kRows;
      p.rows[i] = row < block_.rows ? least(block_.rows - row, kRows) : 0;
      p.x[i] = block_.packed + row * row_bytes + k * kParts * kElement * p.rows[i];
    }
    return p;
  }

  // For the panels of rows [m, m + 32).
  void configure(std::int64_t m) const {
    const Panels p = panels(m, 0);
    load_config(config_of(p.rows[0], p.rows[1]));
  }

  Target target(std::int64_t n, std::int64_t spacing, std::int64_t m, std::int64_t k) const {
    return {block_, n, spacing, m, k == 0, k + kBlock >= depth_};
  }

  void stream_strip(std::int64_t n, std::int64_t spacing) const {
    const std::int64_t stride = spacing * row_bytes_;
    for (std::int64_t k = 0; k < depth_; k += kBlock) {
      const std::int64_t steps = least(depth_ - k, kBlock) / kDepth;
      multiply({weight(n) + k * kElement, stride, kRows * stride, kLine, steps}, panels(0, k),
               target(n, spacing, 0, k));
    }
  }

  // Copies elements [k, k + count) of outputs [n, n + 32) to [step][output][32] bf16, zeros where the weight has none.
  void copy(std::int64_t n, std::int64_t k, std::int64_t count, std::byte* to) const {
    const std::int64_t outs = least(outs_ - n, kPair), whole = count / kDepth, rest = count % kDepth;
    if (outs < kPair || rest > 0) std::memset(to, 0, static_cast<std::size_t>(kStepBytes * (whole + 1)));
    for (std::int64_t i = 0; i < outs; ++i, to += kLine) {
      const std::byte* from = weight(n + i) + k * kElement;
      for (std::int64_t step = 0; step < whole; ++step) std::memcpy(to + step * kStepBytes, from + step * kLine, kLine);
      std::memcpy(to + whole * kStepBytes, from + whole * kLine, static_cast<std::size_t>(rest * kElement));
    }
  }

  // All rows by outputs [n, n + 32), a block of K.
  void pass_over(std::int64_t n, std::int64_t k) const {
    alignas(64) std::byte copied[(kBlock / kDepth + 1) * kStepBytes];
    const std::int64_t count = least(depth_ - k, kBlock);
    const Strip strip{copied, kLine, kRows * kLine, kStepBytes, (count + kDepth - 1) / kDepth};
    std::int64_t m = 0;
    if (count % kDepth == 0 && n + kPair <= outs_ && block_.rows >= kPair) {
      configure(m);
      const Strip there{weight(n) + k * kElement, row_bytes_, kRows * row_bytes_, kLine, strip.steps};
      multiply_panels<2, true>(there, panels(m, k), target(n, 1, m, k), copied);
      m += kPair;
    } else {
      copy(n, k, count, copied);
    }
    for (; m < block_.rows; m += kPair) {
      if (m == 0 || m + kPair >= block_.rows) configure(m);  // which also sees to it that the copy is in memory
      multiply(strip, panels(m, k), target(n, 1, m, k));
    }
  }

  const LinearBlock& block_;
  std::int64_t depth_;
  std::int64_t outs_;
  std::int64_t row_bytes_;  // of the weight
};

}  // namespace

std::size_t packed_bytes(std::int64_t rows, std::int64_t depth) noexcept {
  return static_cast<std::size_t>(rows * padded(depth) * kParts * kElement);
}

void pack_rows(const LinearBlock& block, std::byte* packed) noexcept {
  auto* words = reinterpret_cast<std::uint32_t*>(packed);
  for (std::int64_t m = 0; m < block.rows; m += kRows) {
    const std::int64_t rows = least(block.rows - m, kRows);
    for (std::int64_t k = 0; k < block.weight.cols; k += kDepth) {
      pack_step(block, m, rows, k, words);
      words += kParts * kRows * rows;
    }
  }
}

void linear_block(const LinearBlock& block) noexcept {
  const Product product(block);
  block.rows <= kPair ? product.stream() : product.pass();
  _tile_release();
}

}  // namespace sluice::amx

// The segments of paged attention: scores, online softmax and weighted sums of a tile, register-blocked.
#include <cstring>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/paged_attention_core.h"
#include "kernels/cpu/vector_math.h"

namespace sluice::SLUICE_LEVEL {
namespace {

constexpr bool kWide = kLanes == 16;
constexpr std::int64_t kKeys = 4;                    // keys of a register tile of scores
constexpr std::int64_t kScoreRows = kWide ? 6 : 3;   // its rows at most: with 32 or 16 registers
constexpr std::int64_t kSumRows = kWide ? 6 : 4;     // rows of a register tile of weighted sums at most
constexpr std::int64_t kSumVectors = kWide ? 4 : 3;  // its vectors along head_dim
constexpr std::int64_t kNear = kWide ? 32 : 16;      // positions whose keys or values stay in the first-level cache
constexpr std::int64_t kDirectRows = 16;             // tiles of at most so many rows read 16-bit caches in place
constexpr float kMinusInfinity = -HUGE_VALF;

// The positions of one span that some row of the tile sees, as offsets from the span's start.
struct Span {
  std::int64_t start = 0;  // position
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t first_group() const { return begin / kKeys * kKeys; }
};

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool empty() const { return begin >= end; }
};

HWY_INLINE Range intersection(Range a, Range b) { return {larger(a.begin, b.begin), smaller(a.end, b.end)}; }

// What a tile's functions share.
struct Context {
  const PagedAttentionArgs& args;
  const AttentionTile& tile;
  const TileWorkspace& work;
  const PartialSoftmax& out;
  std::int64_t group;
  std::int64_t width;  // padded head_dim

  std::int64_t position(std::int64_t row) const { return tile.first_position + row / group; }

  // What a row sees of a span, as offsets from its start.
  Range visible(const Span& span, std::int64_t row) const {
    const std::int64_t p = position(row);
    return intersection({span.begin, span.end}, {first_visible(p, args.window) - span.start, p + 1 - span.start});
  }
};

// Where the rows of a span lie, by offset from its start.
struct SpanRows {
  const void* keys[kSpan];    // filled out to whole groups of kKeys
  const void* values[kSpan];  // the same

  // Scores are made for groups of kKeys; those of positions that are not in the span are never looked at.
  void fill_groups(const Span& span) {
    for (std::int64_t i = span.first_group(); i < span.begin; ++i) {
      keys[i] = keys[span.begin];
      values[i] = values[span.begin];
    }
    for (std::int64_t i = span.end; i % kKeys != 0; ++i) {
      keys[i] = keys[span.end - 1];
      values[i] = values[span.end - 1];
    }
  }
};

template <typename C>
void find_rows(const Context& x, const Span& span, SpanRows& rows) {
  const PagedAttentionShape& shape = x.args.shape;
  const std::int32_t* table = x.args.indices.block_table + x.tile.row * shape.max_blocks_per_row;
  const std::int64_t stride = shape.kv_heads * shape.head_dim;
  std::int64_t left = 0;  // positions left in the current block
  const C* key = nullptr;
  const C* value = nullptr;
  for (std::int64_t i = span.begin; i < span.end; ++i) {
    if (left == 0) {
      const std::int64_t position = span.start + i;
      const std::int64_t inside = position % shape.block_size;
      const std::int64_t block = table[position / shape.block_size];
      const std::int64_t offset = (block * shape.block_size + inside) * stride + x.tile.kv_head * shape.head_dim;
      key = static_cast<const C*>(x.args.key_cache) + offset;
      value = static_cast<const C*>(x.args.value_cache) + offset;
      left = shape.block_size - inside;
    }
    rows.keys[i] = key;
    rows.values[i] = value;
    key += stride;
    value += stride;
    --left;
  }
  rows.fill_groups(span);
}

// Copies the rows into the workspace as f32, padded with zeros, and points at the copies.
template <typename C>
void widen_rows(const Context& x, const Span& span, SpanRows& rows) {
  const std::int64_t n = x.args.shape.head_dim;
  const auto widen = [&](const void*& row, float* to) {
    std::int64_t i = 0;
    for (; i < n; i += kLanes) store(load_up_to(static_cast<const C*>(row) + i, n - i), to + i);
    for (; i < x.width; i += kLanes) store(zeros(), to + i);
    row = to;
  };
  for (std::int64_t i = span.begin; i < span.end; ++i) {
    widen(rows.keys[i], x.work.keys + i * x.width);
    widen(rows.values[i], x.work.values + i * x.width);
  }
  rows.fill_groups(span);
}

// The sums of the lanes of four vectors, each by the same tree (halves first), side by side.
#if HWY_TARGET == HWY_AVX2
HWY_INLINE void store_four_sums(Floats a, Floats b, Floats c, Floats d, float* to) {
  const __m256 ab =
      _mm256_add_ps(_mm256_permute2f128_ps(a.raw, b.raw, 0x20), _mm256_permute2f128_ps(a.raw, b.raw, 0x31));
  const __m256 cd =
      _mm256_add_ps(_mm256_permute2f128_ps(c.raw, d.raw, 0x20), _mm256_permute2f128_ps(c.raw, d.raw, 0x31));
  const __m256 two =
      _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));  // a a c c b b d d
  const __m256 one = _mm256_add_ps(two, _mm256_permute_ps(two, 0xb1));
  const __m128 ac = _mm256_castps256_ps128(one);
  const __m128 bd = _mm256_extractf128_ps(one, 1);
  _mm_storeu_ps(to, _mm_blend_ps(ac, _mm_permute_ps(bd, 0xa0), 0xa));  // a b c d
}
#else
HWY_INLINE void store_four_sums(Floats a, Floats b, Floats c, Floats d, float* to) {
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a.raw, b.raw, 0x44), _mm512_shuffle_f32x4(a.raw, b.raw, 0xee));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c.raw, d.raw, 0x44), _mm512_shuffle_f32x4(c.raw, d.raw, 0xee));
  const __m512 four = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));  // a b c d
  const __m512 two = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4e));
  const __m512 one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
  const __m512i pick = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
  _mm_storeu_ps(to, _mm512_castps512_ps128(_mm512_permutexvar_ps(pick, one)));
}
#endif

// Keeps the compiler from loading a vector again for every use: with few registers it folds loads into the arithmetic.
HWY_INLINE Floats in_register(Floats v) {
  if constexpr (!kWide) asm("" : "+x"(v.raw));
  return v;
}

// Asks for a line that will be read about half a span later. Spread over the arithmetic one or two at a time: a burst
// of them would stall it.
template <typename T>
constexpr std::int64_t kLineOf = 64 / sizeof(T);

HWY_INLINE void ask_for(const void* line) { __builtin_prefetch(line, 0, 2); }

// Scores of kRows rows against kKeys keys; meanwhile asks for the first kAhead rows of `ahead`.
template <typename K, int kRows, int kAhead>
HWY_INLINE void score_tile(const float* queries, std::int64_t width, const void* const* keys, const void* const* ahead,
                           float* scores) {
  Floats sums[kRows][kKeys];
  const K* key[kKeys];
  for (std::int64_t n = 0; n < kKeys; ++n) key[n] = static_cast<const K*>(keys[n]);
  for (int m = 0; m < kRows; ++m) {
    for (std::int64_t n = 0; n < kKeys; ++n) sums[m][n] = zeros();
  }
  for (std::int64_t i = 0; i < width; i += kLanes) {
    Floats q[kRows];
    for (int m = 0; m < kRows; ++m) q[m] = load(queries + m * width + i);
    if (i % kLineOf<K> == 0) {
      for (int n = 0; n < kAhead; ++n) ask_for(static_cast<const K*>(ahead[n]) + i);
    }
    for (std::int64_t n = 0; n < kKeys; ++n) {
      const Floats k = in_register(load(key[n] + i));
      for (int m = 0; m < kRows; ++m) sums[m][n] = hn::MulAdd(q[m], k, sums[m][n]);
    }
  }
  for (int m = 0; m < kRows; ++m) {
    store_four_sums(sums[m][0], sums[m][1], sums[m][2], sums[m][3], scores + m * kSpan);
  }
}

template <typename K, int kAhead>
HWY_INLINE void score_rows(std::int64_t rows, const float* queries, std::int64_t width, const void* const* keys,
                           const void* const* ahead, float* scores) {
  switch (rows) {
    case 1:
      return score_tile<K, 1, kAhead>(queries, width, keys, ahead, scores);
    case 2:
      return score_tile<K, 2, kAhead>(queries, width, keys, ahead, scores);
    case 3:
      return score_tile<K, 3, kAhead>(queries, width, keys, ahead, scores);
    case 4:
      return score_tile<K, kWide ? 4 : 1, kAhead>(queries, width, keys, ahead, scores);
    case 5:
      return score_tile<K, kWide ? 5 : 1, kAhead>(queries, width, keys, ahead, scores);
    default:
      return score_tile<K, kWide ? 6 : 1, kAhead>(queries, width, keys, ahead, scores);
  }
}

// Rows of the block that starts at `row`, when `rows` rows are cut into blocks of at most `most`, as even as can be.
HWY_INLINE std::int64_t block_rows(std::int64_t rows, std::int64_t row, std::int64_t most) {
  const std::int64_t left = rows - row;
  const std::int64_t blocks = (left + most - 1) / most;
  return (left + blocks - 1) / blocks;
}

// Asks, a few lines at a time, for the rows that the next span will be widened from.
class Soon {
 public:
  Soon() = default;
  Soon(const SpanRows& rows, const Span& span, std::int64_t row_bytes)
      : rows_(&rows), row_(span.begin), end_(span.end), bytes_(row_bytes) {}

  HWY_INLINE void ask() {
    constexpr std::int64_t kLines = 4;
    if (row_ >= end_) return;
    for (std::int64_t i = 0; i < kLines; ++i) {
      ask_for(static_cast<const char*>(rows_->keys[row_]) + at_ + i * 64);
      ask_for(static_cast<const char*>(rows_->values[row_]) + at_ + i * 64);
    }
    at_ += kLines * 64;
    if (at_ < bytes_) return;
    at_ = 0;
    ++row_;
  }

 private:
  const SpanRows* rows_ = nullptr;
  std::int64_t row_ = 0;
  std::int64_t end_ = 0;
  std::int64_t bytes_ = 0;
  std::int64_t at_ = 0;
};

// Where `kStream`, the values of the same positions are asked for on the way; else what `soon` names.
template <typename K, bool kStream>
void score_span(const Context& x, const Span& span, const SpanRows& rows, Soon soon) {
  for (std::int64_t near = span.first_group(); near < span.end; near += kNear) {
    const std::int64_t near_end = smaller(near + kNear, span.end);
    for (std::int64_t row = 0, count = 0; row < x.tile.rows; row += count) {
      count = block_rows(x.tile.rows, row, kScoreRows);
      const float* queries = x.work.queries + row * x.width;
      float* scores = x.work.scores + row * kSpan;
      for (std::int64_t key = near; key < near_end; key += kKeys) {
        const void* const* keys = rows.keys + key;
        const void* const* values = rows.values + key;
        if (!kStream || row > count) {
          soon.ask();
          score_rows<K, 0>(count, queries, x.width, keys, nullptr, scores + key);
        } else if (count == x.tile.rows) {
          score_rows<K, kKeys>(count, queries, x.width, keys, values, scores + key);
        } else {  // the first two blocks of rows ask for half of them each
          score_rows<K, kKeys / 2>(count, queries, x.width, keys, values + (row > 0 ? kKeys / 2 : 0), scores + key);
        }
      }
    }
  }
}

HWY_INLINE void scale_sums(float* sums, std::int64_t width, float factor) {
  for (std::int64_t i = 0; i < width; i += kLanes) store(hn::Mul(load(sums + i), all(factor)), sums + i);
}

HWY_INLINE float larger_number(float a, float b) { return a > b ? a : b; }

HWY_INLINE float first_lane(Floats v) { return hn::GetLane(v); }

HWY_INLINE float exp_of_difference(float x, float max) { return first_lane(exp_of_nonpositive(all(x - max))); }

HWY_INLINE void cap_scores(float* scores, float cap) {
  for (std::int64_t i = 0; i < kSpan; i += kLanes) {
    store(hn::Mul(all(cap), tanh(hn::Div(load(scores + i), all(cap)))), scores + i);
  }
}

// Lanes whose offset is not in the range become -Inf.
HWY_INLINE Floats only_visible(Floats s, std::int64_t offset, Range visible) {
  const IntTag words;
  const auto at = hn::Iota(words, static_cast<std::int32_t>(offset));
  const auto seen = hn::AndNot(hn::Lt(at, hn::Set(words, static_cast<std::int32_t>(visible.begin))),
                               hn::Lt(at, hn::Set(words, static_cast<std::int32_t>(visible.end))));
  return hn::IfThenElse(hn::RebindMask(kFloats, seen), s, all(kMinusInfinity));
}

// Turns a row's scores into shares e^(s - max), zero where it sees nothing, and brings what it has summed to the new max.
void soften_row(const Context& x, std::int64_t row, Range visible) {
  constexpr int kVectors = static_cast<int>(kSpan / kLanes);
  float* scores = x.work.scores + row * kSpan;
  if (x.args.softcap > 0.0f) cap_scores(scores, x.args.softcap);
  Floats s[kVectors];
  for (int i = 0; i < kVectors; ++i) s[i] = load(scores + i * kLanes);
  if (visible.begin > 0 || visible.end < kSpan) {
    for (int i = 0; i < kVectors; ++i) s[i] = only_visible(s[i], i * kLanes, visible);
  }
  Floats top = s[0];
  for (int i = 1; i < kVectors; ++i) top = hn::Max(top, s[i]);
  const float old_max = x.out.max[row];
  const float max = larger_number(max_lane(top), old_max);
  Floats shares = zeros();
  for (int i = 0; i < kVectors; ++i) {
    s[i] = exp_of_nonpositive(hn::Sub(s[i], all(max)));
    store(s[i], scores + i * kLanes);
    shares = hn::Add(shares, s[i]);
  }
  float weight = x.out.weight[row];
  if (max != old_max && old_max != kMinusInfinity) {
    const float factor = exp_of_difference(old_max, max);
    scale_sums(x.out.sums + row * x.width, x.width, factor);
    weight *= factor;
  }
  x.out.max[row] = max;
  x.out.weight[row] = weight + sum_lanes(shares);
}

// sums[m][..] += share[m][j] * value[j][..] over a range of positions, kVectors vectors of head_dim wide. Meanwhile asks
// for the same stretch of the rows of `ahead`, where there is any.
template <typename V, int kRows, int kVectors, bool kAhead>
HWY_INLINE void sum_tile(const Context& x, std::int64_t row, const SpanRows& where, const void* const* ahead,
                         Range range, std::int64_t first) {
  const float* shares = x.work.scores + row * kSpan;
  float* sums = x.out.sums + row * x.width + first;
  Floats s[kRows][kVectors];
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kVectors; ++n) s[m][n] = load(sums + m * x.width + n * kLanes);
  }
  for (std::int64_t j = range.begin; j < range.end; ++j) {
    const V* value = static_cast<const V*>(where.values[j]) + first;
    Floats v[kVectors];
    for (int n = 0; n < kVectors; ++n) v[n] = load(value + n * kLanes);
    for (int n = 0; kAhead && n < kVectors * kLanes; n += kLineOf<V>)
      ask_for(static_cast<const V*>(ahead[j]) + first + n);
    for (int m = 0; m < kRows; ++m) {
      const Floats share = all(shares[m * kSpan + j]);
      for (int n = 0; n < kVectors; ++n) s[m][n] = hn::MulAdd(share, v[n], s[m][n]);
    }
  }
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kVectors; ++n) store(s[m][n], sums + m * x.width + n * kLanes);
  }
}

template <typename V, int kRows, bool kAhead>
HWY_INLINE void sum_strips(const Context& x, std::int64_t row, const SpanRows& where, const void* const* ahead,
                           Range range) {
  std::int64_t i = 0;
  for (; i + kSumVectors * kLanes <= x.width; i += kSumVectors * kLanes) {
    sum_tile<V, kRows, kSumVectors, kAhead>(x, row, where, ahead, range, i);
  }
  for (; i < x.width; i += kLanes) sum_tile<V, kRows, 1, kAhead>(x, row, where, ahead, range, i);
}

template <typename V, bool kAhead>
void sum_rows(const Context& x, std::int64_t row, std::int64_t rows, const SpanRows& where, const void* const* ahead,
              Range range) {
  if (range.empty()) return;
  switch (rows) {
    case 1:
      return sum_strips<V, 1, kAhead>(x, row, where, ahead, range);
    case 2:
      return sum_strips<V, 2, kAhead>(x, row, where, ahead, range);
    case 3:
      return sum_strips<V, 3, kAhead>(x, row, where, ahead, range);
    case 4:
      return sum_strips<V, 4, kAhead>(x, row, where, ahead, range);
    case 5:
      return sum_strips<V, 5, kAhead>(x, row, where, ahead, range);
    default:
      return sum_strips<V, 6, kAhead>(x, row, where, ahead, range);
  }
}

// A block of rows over some positions of a span. Each row takes its own positions in ascending order, and no others: the
// ones before and after those that all rows of the block see are added row by row.
template <typename V>
void sum_block(const Context& x, const Span& span, Range near, Range rows, const SpanRows& where,
               const void* const* ahead) {
  // Later rows see no less at the end and no more at the beginning.
  const Range first = intersection(near, x.visible(span, rows.begin));
  const Range last = intersection(near, x.visible(span, rows.end - 1));
  Range common{last.begin, first.end};
  if (common.empty()) common = {near.end, near.end};
  const bool ragged = first.begin < common.begin || common.end < last.end;
  for (std::int64_t r = rows.begin; ragged && r < rows.end; ++r) {
    const Range own = intersection(near, x.visible(span, r));
    sum_rows<V, false>(x, r, 1, where, nullptr, {own.begin, smaller(own.end, common.begin)});
  }
  if (ahead) {
    sum_rows<V, true>(x, rows.begin, rows.end - rows.begin, where, ahead, common);
  } else {
    sum_rows<V, false>(x, rows.begin, rows.end - rows.begin, where, nullptr, common);
  }
  for (std::int64_t r = rows.begin; ragged && r < rows.end; ++r) {
    const Range own = intersection(near, x.visible(span, r));
    sum_rows<V, false>(x, r, 1, where, nullptr, {larger(own.begin, common.end), own.end});
  }
}

// `ahead`: the keys of the next span, asked for on the way, or null.
template <typename V>
void sum_span(const Context& x, const Span& span, const SpanRows& where, const void* const* ahead) {
  for (std::int64_t near = span.begin; near < span.end; near += kNear) {
    const Range range{near, smaller(near + kNear, span.end)};
    for (std::int64_t row = 0, count = 0; row < x.tile.rows; row += count) {
      count = block_rows(x.tile.rows, row, kSumRows);
      sum_block<V>(x, span, range, {row, row + count}, where, row == 0 ? ahead : nullptr);
    }
  }
}

template <typename E, bool kStream>
void attend_span(const Context& x, const Span& span, const SpanRows& rows, const void* const* ahead, Soon soon) {
  score_span<E, kStream>(x, span, rows, soon);
  for (std::int64_t row = 0; row < x.tile.rows; ++row) {
    const Range visible = x.visible(span, row);
    if (!visible.empty()) soften_row(x, row, visible);
  }
  sum_span<E>(x, span, rows, ahead);
}

// Few rows: the caches stream past, so they are read in place, span by span with all kv heads of the item inside (their
// rows lie side by side), and what comes next is asked for ahead of time.
template <typename C>
void stream_segment(const PagedAttentionArgs& args, const AttentionTile& tile, const TileWorkspace& work,
                    const PartialSoftmax& out, Range positions) {
  const std::int64_t width = padded(args.shape.head_dim);
  const std::int64_t first = positions.begin / kSpan * kSpan;
  const std::int64_t steps = (positions.end - first + kSpan - 1) / kSpan * tile.kv_heads;
  AttentionTile head = tile;
  TileWorkspace head_work = work;
  PartialSoftmax head_out = out;
  const Context x{args, head, head_work, head_out, args.shape.query_heads / args.shape.kv_heads, width};
  const auto aim = [&](std::int64_t step) {
    const std::int64_t h = step % tile.kv_heads;
    head.kv_head = tile.kv_head + h;
    head_work.queries = work.queries + h * tile.rows * width;
    head_out.sums = out.sums + h * out.head_stride * width;
    head_out.max = out.max + h * out.head_stride;
    head_out.weight = out.weight + h * out.head_stride;
    const std::int64_t start = first + step / tile.kv_heads * kSpan;
    return Span{start, larger(positions.begin - start, 0), smaller(positions.end - start, kSpan)};
  };
  SpanRows rows[2];
  find_rows<C>(x, aim(0), rows[0]);
  for (std::int64_t step = 0; step < steps; ++step) {
    SpanRows& next = rows[(step + 1) % 2];
    const bool more = step + 1 < steps;
    if (more) {
      const Span span = aim(step + 1);
      find_rows<C>(x, span, next);
      for (std::int64_t j = 0; j < span.begin; ++j) next.keys[j] = next.keys[span.begin];
      for (std::int64_t j = span.end; j < kSpan; ++j) next.keys[j] = next.keys[span.end - 1];
    }
    const Span span = aim(step);
    attend_span<C, true>(x, span, rows[step % 2], more ? next.keys : nullptr, Soon());
  }
}

// Many rows: arithmetic counts, and the span is best laid out densely as f32 once.
template <typename C>
void widen_segment(const Context& x, Range positions) {
  const auto span_at = [&](std::int64_t start) {
    return Span{start, larger(positions.begin - start, 0), smaller(positions.end - start, kSpan)};
  };
  const std::int64_t row_bytes = x.args.shape.head_dim * static_cast<std::int64_t>(sizeof(C));
  const std::int64_t first = positions.begin / kSpan * kSpan;
  SpanRows rows[2];
  find_rows<C>(x, span_at(first), rows[0]);
  for (std::int64_t start = first, i = 0; start < positions.end; start += kSpan, ++i) {
    SpanRows& here = rows[i % 2];
    SpanRows& next = rows[(i + 1) % 2];
    widen_rows<C>(x, span_at(start), here);
    Soon soon;
    if (start + kSpan < positions.end) {
      find_rows<C>(x, span_at(start + kSpan), next);
      soon = Soon(next, span_at(start + kSpan), row_bytes);
    }
    attend_span<float, false>(x, span_at(start), here, nullptr, soon);
  }
}

std::int64_t group_of(const PagedAttentionShape& shape) { return shape.query_heads / shape.kv_heads; }

}  // namespace

void paged_attend_segment(const PagedAttentionArgs& args, const AttentionTile& tile, std::int64_t segment,
                          const TileWorkspace& work, const PartialSoftmax& out) noexcept {
  const std::int64_t width = padded(args.shape.head_dim);
  for (std::int64_t h = 0; h < tile.kv_heads; ++h) {
    for (std::int64_t row = h * out.head_stride; row < h * out.head_stride + tile.rows; ++row) {
      out.max[row] = kMinusInfinity;
      out.weight[row] = 0;
    }
    std::memset(out.sums + h * out.head_stride * width, 0, static_cast<std::size_t>(tile.rows * width) * sizeof(float));
  }
  const Range seen{first_visible(tile.first_position, args.window), tile.first_position + tile.tokens};
  const Range positions = intersection(seen, {segment * kSegment, (segment + 1) * kSegment});
  if (positions.empty()) return;
  const bool in_place = width == args.shape.head_dim && tile.rows <= kDirectRows;
  with_float_type(args.cache_type, [&](auto type) {
    if (in_place) return stream_segment<decltype(type)>(args, tile, work, out, positions);
    for (std::int64_t h = 0; h < tile.kv_heads; ++h) {
      AttentionTile head = tile;
      head.kv_head += h;
      TileWorkspace head_work = work;
      head_work.queries += h * tile.rows * width;
      const PartialSoftmax head_out{out.sums + h * out.head_stride * width, out.max + h * out.head_stride,
                                    out.weight + h * out.head_stride, 0};
      const Context x{args, head, head_work, head_out, group_of(args.shape), width};
      widen_segment<decltype(type)>(x, positions);
    }
  });
}

void paged_merge_segment(const PagedAttentionArgs& args, const AttentionTile& tile, const PartialSoftmax& into,
                         const PartialSoftmax& segment) noexcept {
  const std::int64_t width = padded(args.shape.head_dim);
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    if (segment.max[row] == kMinusInfinity) continue;
    const float max = into.max[row] > segment.max[row] ? into.max[row] : segment.max[row];
    const float mine = exp_of_difference(into.max[row], max);
    const float theirs = exp_of_difference(segment.max[row], max);
    float* sums = into.sums + row * width;
    const float* added = segment.sums + row * width;
    for (std::int64_t i = 0; i < width; i += kLanes) {
      store(hn::MulAdd(load(added + i), all(theirs), hn::Mul(load(sums + i), all(mine))), sums + i);
    }
    into.weight[row] = into.weight[row] * mine + segment.weight[row] * theirs;
    into.max[row] = max;
  }
}

void paged_finish_tile(const PagedAttentionArgs& args, const AttentionTile& tile,
                       const PartialSoftmax& total) noexcept {
  const PagedAttentionShape& shape = args.shape;
  const std::int64_t group = group_of(shape);
  const std::int64_t width = padded(shape.head_dim);
  with_float_type(args.type, [&](auto type) {
    using T = decltype(type);
    for (std::int64_t row = 0; row < tile.rows; ++row) {
      const std::int64_t head = tile.kv_head * group + row % group;
      float weight = total.weight[row];
      float factor = 1;
      if (args.head_sink) {
        const float sink = first_lane(load_part(static_cast<const T*>(args.head_sink) + head, 1));
        const float max = sink > total.max[row] ? sink : total.max[row];
        factor = exp_of_difference(total.max[row], max);
        weight = weight * factor + exp_of_difference(sink, max);
      }
      const Floats share = all(factor / weight);
      const float* sums = total.sums + row * width;
      T* to =
          static_cast<T*>(args.output) + ((tile.first_token + row / group) * shape.query_heads + head) * shape.head_dim;
      for (std::int64_t i = 0; i < shape.head_dim; i += kLanes) {
        // Adding zero turns -0 into 0: an underflow's sign may depend on positions that a row does not see.
        store_up_to(hn::Add(hn::Mul(load(sums + i), share), zeros()), to + i, shape.head_dim - i);
      }
    }
  });
}

}  // namespace sluice::SLUICE_LEVEL

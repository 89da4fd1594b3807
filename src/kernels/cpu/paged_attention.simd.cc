// The segments of paged attention: scores, online softmax and weighted sums of a tile, span by span.
#include <cstring>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/paged_attention_span.h"
#include "kernels/cpu/paged_attention_tiles.h"

namespace sluice::SLUICE_LEVEL {
namespace {

constexpr std::int64_t kNear = kWide ? kNearRows : kNearRows / 2;  // rows widened at once
constexpr std::int64_t kDirectRows = 16;                           // of a tile that reads the caches in place, at most
constexpr float kMinusInfinity = -HUGE_VALF;

// What the functions of one kv head's tile share.
struct Context {
  const PagedAttentionArgs& args;
  AttentionTile tile;
  TileWorkspace work;
  PartialSoftmax out;
  std::int64_t group;
  std::int64_t width;        // padded head_dim
  std::int64_t head_offset;  // bytes from a row's start to this head

  // Of head `head` of an item of several.
  Context(const PagedAttentionArgs& a, const AttentionTile& item, std::int64_t head, const TileWorkspace& w,
          const PartialSoftmax& o)
      : args(a), tile(item), work(w), out(o) {
    group = args.shape.query_heads / args.shape.kv_heads;
    width = padded(args.shape.head_dim);
    head_offset = head * args.shape.head_dim * static_cast<std::int64_t>(dtype_bytes(args.cache_type));
    tile.kv_head += head;
    work.queries += head * tile.rows * width;
    out.sums += head * out.head_stride * width;
    out.max += head * out.head_stride;
    out.weight += head * out.head_stride;
  }

  std::int64_t position(std::int64_t row) const { return tile.first_position + row / group; }

  // What a row sees of a span, as offsets from its start.
  Range visible(const Span& span, std::int64_t row) const {
    const std::int64_t p = position(row);
    return intersection({span.begin, span.end}, {first_visible(p, args.window) - span.start, p + 1 - span.start});
  }
};

// The rows of this head, in place.
template <typename C>
void point_at(const Context& x, const std::byte* const* rows, Range range, const C** to) {
  for (std::int64_t j = range.begin; j < range.end; ++j) to[j] = reinterpret_cast<const C*>(rows[j] + x.head_offset);
}

// The rows of this head laid out densely as f32, padded with zeros.
template <typename C>
void widen(const Context& x, const std::byte* const* rows, std::int64_t count, const float** to) {
  const std::int64_t n = x.args.shape.head_dim;
  for (std::int64_t j = 0; j < count; ++j) {
    const C* from = reinterpret_cast<const C*>(rows[j] + x.head_offset);
    float* row = x.work.rows + j * x.width;
    std::int64_t i = 0;
    for (; i < n; i += kLanes) store(load_up_to(from + i, n - i), row + i);
    for (; i < x.width; i += kLanes) store(zeros(), row + i);
    to[j] = row;
  }
}

// Scores are made for whole groups of kKeys; those of positions that are not in the span are never looked at.
//
// Few rows: the keys stream past, and each group of them meets all rows while it is near.
template <typename C>
void score_in_place(const Context& x, const Span& span, const SpanRows& rows, Ahead& ahead) {
  const C* keys[kSpan];
  point_at(x, rows.keys, {span.groups_begin(), span.groups_end()}, keys);
  for (std::int64_t key = span.groups_begin(); key < span.groups_end(); key += kKeys) {
    for (std::int64_t row = 0, count = 0; row < x.tile.rows; row += count) {
      count = block_rows(x.tile.rows, row, kScoreRows);
      score_rows(count, x.work.queries + row * x.width, keys + key, x.width, x.work.scores + row * kSpan + key, ahead);
    }
  }
}

// Many rows: arithmetic counts, and some keys at a time are best widened once, into the first-level cache.
template <typename C>
void score_widened(const Context& x, const Span& span, const SpanRows& rows, Ahead& ahead) {
  for (std::int64_t near = span.groups_begin(); near < span.groups_end(); near += kNear) {
    const std::int64_t near_end = smaller(near + kNear, span.groups_end());
    const float* keys[kNear];
    widen<C>(x, rows.keys + near, near_end - near, keys);
    for (std::int64_t row = 0, count = 0; row < x.tile.rows; row += count) {
      count = block_rows(x.tile.rows, row, kScoreRows);
      const float* queries = x.work.queries + row * x.width;
      for (std::int64_t key = near; key < near_end; key += kKeys) {
        Idle idle;
        score_rows(count, queries, keys + (key - near), x.width, x.work.scores + row * kSpan + key, idle);
        ahead.worked(count * kKeys * x.width);
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

// A block of rows over the positions `near` of a span; values: of these positions. Each row takes its own positions in
// ascending order, and no others: the ones before and after those that all rows of the block see are added row by row.
template <typename V, typename Meanwhile>
void sum_block(const Context& x, const Span& span, Range near, Range rows, const V* const* values,
               Meanwhile& meanwhile) {
  const auto add = [&](std::int64_t row, std::int64_t count, Range range) {
    if (range.empty()) return;
    const SumTask<V> task{x.work.scores + row * kSpan + range.begin, values + (range.begin - near.begin),
                          x.out.sums + row * x.width, range.end - range.begin, x.width};
    sum_rows(count, task, meanwhile);
  };
  // Later rows see no less at the end and no more at the beginning.
  const Range first = intersection(near, x.visible(span, rows.begin));
  const Range last = intersection(near, x.visible(span, rows.end - 1));
  Range common{last.begin, first.end};
  if (common.empty()) common = {near.end, near.end};
  const bool ragged = first.begin < common.begin || common.end < last.end;
  for (std::int64_t r = rows.begin; ragged && r < rows.end; ++r) {
    const Range own = intersection(near, x.visible(span, r));
    add(r, 1, {own.begin, smaller(own.end, common.begin)});
  }
  add(rows.begin, rows.end - rows.begin, common);
  for (std::int64_t r = rows.begin; ragged && r < rows.end; ++r) {
    const Range own = intersection(near, x.visible(span, r));
    add(r, 1, {larger(own.begin, common.end), own.end});
  }
}

template <typename C>
void sum_in_place(const Context& x, const Span& span, const SpanRows& rows, Ahead& ahead) {
  const C* values[kSpan];
  const Range range{span.begin, span.end};
  point_at(x, rows.values, range, values);
  for (std::int64_t row = 0, count = 0; row < x.tile.rows; row += count) {
    count = block_rows(x.tile.rows, row, kSumRows);
    sum_block(x, span, range, {row, row + count}, values + range.begin, ahead);
  }
}

template <typename C>
void sum_widened(const Context& x, const Span& span, const SpanRows& rows, Ahead& ahead) {
  for (std::int64_t near = span.begin; near < span.end; near += kNear) {
    const Range range{near, smaller(near + kNear, span.end)};
    const float* values[kNear];
    widen<C>(x, rows.values + near, range.end - near, values);
    for (std::int64_t row = 0, count = 0; row < x.tile.rows; row += count) {
      count = block_rows(x.tile.rows, row, kSumRows);
      Idle idle;
      sum_block(x, span, range, {row, row + count}, values, idle);
      ahead.worked(count * (range.end - range.begin) * x.width);
    }
  }
}

template <typename C>
void attend_span(const Context& x, const Span& span, const SpanRows& rows, Ahead& ahead) {
  const bool in_place = x.width == x.args.shape.head_dim && x.tile.rows <= kDirectRows;
  in_place ? score_in_place<C>(x, span, rows, ahead) : score_widened<C>(x, span, rows, ahead);
  for (std::int64_t row = 0; row < x.tile.rows; ++row) {
    const Range visible = x.visible(span, row);
    if (!visible.empty()) soften_row(x, row, visible);
  }
  in_place ? sum_in_place<C>(x, span, rows, ahead) : sum_widened<C>(x, span, rows, ahead);
}

void clear(const AttentionTile& tile, std::int64_t width, const PartialSoftmax& out) {
  for (std::int64_t h = 0; h < tile.kv_heads; ++h) {
    const std::int64_t first = h * out.head_stride;
    for (std::int64_t row = first; row < first + tile.rows; ++row) {
      out.max[row] = kMinusInfinity;
      out.weight[row] = 0;
    }
    std::memset(out.sums + first * width, 0, static_cast<std::size_t>(tile.rows * width) * sizeof(float));
  }
}

std::int64_t group_of(const PagedAttentionShape& shape) { return shape.query_heads / shape.kv_heads; }

}  // namespace

void paged_attend_segment(const PagedAttentionArgs& args, const AttentionTile& tile, std::int64_t segment,
                          const TileWorkspace& work, const PartialSoftmax& out) noexcept {
  const std::int64_t width = padded(args.shape.head_dim);
  clear(tile, width, out);
  // What the tile sees of the segments that are walked from here on, and of this one.
  const Range seen = intersection({first_visible(tile.first_position, args.window), tile.first_position + tile.tokens},
                                  {segment * kSegment, (tile.last_segment + 1) * kSegment});
  const std::int64_t end = smaller(seen.end, (segment + 1) * kSegment);
  if (seen.begin >= end) return;
  const auto span_at = [&](std::int64_t start) {
    return Span{start, larger(seen.begin - start, 0), smaller(seen.end - start, kSpan)};
  };
  const std::int64_t row_bytes =
      tile.kv_heads * args.shape.head_dim * static_cast<std::int64_t>(dtype_bytes(args.cache_type));
  const std::int64_t position_work = 2 * tile.kv_heads * tile.rows * width;
  SpanRows rows[2];
  Span next = span_at(seen.begin / kSpan * kSpan);
  rows[0].find(args, tile, next);
  if (segment == tile.first_segment) {
    Ahead now;
    now.aim(rows[0], next, row_bytes, 0);
    now.ask_for_all();
  }
  for (std::int64_t i = 0; next.start < end; ++i) {
    const Span span = next;
    next = span_at(span.start + kSpan);
    Ahead ahead;
    if (next.start < seen.end) {
      rows[(i + 1) % 2].find(args, tile, next);
      ahead.aim(rows[(i + 1) % 2], next, row_bytes, position_work * (span.end - span.begin));
    }
    for (std::int64_t head = 0; head < tile.kv_heads; ++head) {
      const Context x(args, tile, head, work, out);
      with_float_type(args.cache_type, [&](auto type) { attend_span<decltype(type)>(x, span, rows[i % 2], ahead); });
    }
  }
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

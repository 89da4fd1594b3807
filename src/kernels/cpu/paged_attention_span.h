// One span of positions: where its rows lie in the caches, and asking for them before they are needed. For
// paged_attention.simd.cc alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/paged_attention_core.h"
#include "kernels/cpu/vector_math.h"

namespace sluice::SLUICE_LEVEL {
namespace {

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool empty() const { return begin >= end; }
};

HWY_INLINE Range intersection(Range a, Range b) { return {larger(a.begin, b.begin), smaller(a.end, b.end)}; }

// The positions of one span that some row of the tile sees, as offsets from the span's start.
struct Span {
  std::int64_t start = 0;  // position
  std::int64_t begin = 0;
  std::int64_t end = 0;

  // Whole groups of kKeys.
  std::int64_t groups_begin() const { return begin / kKeys * kKeys; }
  std::int64_t groups_end() const { return (end + kKeys - 1) / kKeys * kKeys; }
};

// Where the rows of a span begin in the caches, by offset from its start. A row here is all kv heads of the item.
struct SpanRows {
  // Filled out to whole groups of kKeys with the nearest row.
  const std::byte* keys[kSpan];
  const std::byte* values[kSpan];

  void find(const PagedAttentionArgs& args, const AttentionTile& tile, const Span& span) {
    const PagedAttentionShape& shape = args.shape;
    const std::int32_t* table = args.indices.block_table + tile.row * shape.max_blocks_per_row;
    const auto element = static_cast<std::int64_t>(dtype_bytes(args.cache_type));
    const std::int64_t stride = shape.kv_heads * shape.head_dim * element;
    std::int64_t left = 0;  // positions left in the current block
    std::int64_t offset = 0;
    for (std::int64_t i = span.begin; i < span.end; ++i) {
      if (left == 0) {
        const std::int64_t position = span.start + i;
        const std::int64_t inside = position % shape.block_size;
        const std::int64_t block = table[position / shape.block_size];
        offset = (block * shape.block_size + inside) * stride + tile.kv_head * shape.head_dim * element;
        left = shape.block_size - inside;
      }
      keys[i] = static_cast<const std::byte*>(args.key_cache) + offset;
      values[i] = static_cast<const std::byte*>(args.value_cache) + offset;
      offset += stride;
      --left;
    }
    for (std::int64_t i = span.groups_begin(); i < span.begin; ++i) keys[i] = keys[span.begin];
    for (std::int64_t i = span.end; i < span.groups_end(); ++i) keys[i] = keys[span.end - 1];
  }
};

// Asks for the rows of a span while the one before it is at work, in step with the arithmetic.
//
// A core reads at its full rate only while it follows several ascending streams: a hardware prefetcher starts anew in
// every page, after that page's address has been translated, and one stream would wait for both each time. So keys and
// values are cut into kStreams runs of rows and a line of each is asked for by turns; the runs start at different rows,
// so that their pages end at different times. Many lines at once would stall the arithmetic.
class Ahead {
 public:
  Ahead() = default;
  Ahead(const Ahead&) = delete;
  Ahead& operator=(const Ahead&) = delete;

  // From here on, these rows; they will be needed after `work` multiply-adds.
  void aim(const SpanRows& rows, const Span& span, std::int64_t row_bytes, std::int64_t work) {
    const std::int64_t run = (span.end - span.begin + kHalf - 1) / kHalf;
    for (std::int64_t s = 0; s < kHalf; ++s) {
      for (std::int64_t i = 0, in_run = s % run; i < run; ++i, in_run = in_run + 1 < run ? in_run + 1 : 0) {
        const std::int64_t row = smaller(span.begin + s * run + in_run, span.end - 1);
        starts_[i * kStreams + s] = rows.keys[row];
        starts_[i * kStreams + kHalf + s] = rows.values[row];
      }
    }
    at_ = starts_;
    end_ = starts_ + run * kStreams;
    bytes_ = row_bytes;
    price_ = work / (run * ((row_bytes + kLine - 1) / kLine));
  }

  // So many multiply-adds have been done. Calls nothing: the caller's sums are in registers.
  HWY_INLINE void worked(std::int64_t amount) {
    paid_ += amount;
    while (paid_ >= price_) {
      paid_ -= price_;
      ask();
    }
  }

  void ask_for_all() {
    while (at_ != end_) ask();
  }

 private:
  static constexpr std::int64_t kStreams = 8;
  static constexpr std::int64_t kHalf = kStreams / 2;  // of keys, and as many of values
  static constexpr std::int64_t kLine = 64;

  // A line of every stream.
  HWY_INLINE void ask() {
#pragma GCC unroll 8
    for (std::int64_t s = 0; s < kStreams; ++s) __builtin_prefetch(at_[s] + inside_);
    inside_ += kLine;
    if (inside_ < bytes_) return;
    inside_ = 0;
    at_ += kStreams;
    if (at_ == end_) price_ = INT64_MAX;
  }

  const std::byte* starts_[2 * kSpan];    // of rows: a run of each stream's first ones, of their second ones, ..
  const std::byte* const* at_ = starts_;  // the rows whose lines are asked for
  const std::byte* const* end_ = starts_;
  std::int64_t inside_ = 0;         // bytes of them
  std::int64_t bytes_ = 0;          // of a row
  std::int64_t price_ = INT64_MAX;  // multiply-adds before the next lines are asked for
  std::int64_t paid_ = 0;
};

// Asks for nothing: for tiles so large that it is enough to ask between them.
struct Idle {
  HWY_INLINE void worked(std::int64_t) {}
};

}  // namespace
}  // namespace sluice::SLUICE_LEVEL

// The parts of paged attention that are compiled once a level, and the vocabulary they share with the driver.
//
// A tile is some consecutive tokens of one request times the query heads of one kv head; its rows are ordered token
// first: tile row r = (token r / group, query head kv_head * group + r % group), group = query_heads / kv_heads. A tile
// runs over segments of kSegment positions and, inside them, spans of kSpan, both counted from position 0. Inside a
// segment the softmax is online over spans, starting afresh; segments are merged in order. So one token's result is the
// same arithmetic whether one thread walks all segments or many share them, and whoever else is in the tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/paged_attention.h"

namespace sluice {

constexpr std::int64_t kSpan = 64;       // positions whose scores are held at once
constexpr std::int64_t kSegment = 512;   // positions of one independent partial softmax
constexpr std::int64_t kTileRows = 128;  // rows of a tile, about
constexpr std::int64_t kKeys = 4;        // positions whose scores are made together
constexpr std::int64_t kNearRows = 32;   // rows of keys or values widened at once, at most
constexpr std::int64_t kPadding = 16;    // head_dim is padded with zeros to a multiple: the widest vector

constexpr std::int64_t padded(std::int64_t head_dim) noexcept {
  return (head_dim + kPadding - 1) / kPadding * kPadding;
}

// The first position a token at `position` sees.
constexpr std::int64_t first_visible(std::int64_t position, std::int64_t window) noexcept {
  return window < 0 || position < window ? 0 : position - window + 1;
}

// f32 cosines and sines of one position, each padded to whole vectors.
constexpr std::int64_t angle_floats(const PagedAttentionShape& shape) noexcept {
  return 2 * padded(shape.rotary_dim / 2);
}
constexpr std::int64_t write_scratch_floats(const PagedAttentionShape& shape) noexcept {
  return padded(shape.head_dim) + angle_floats(shape);
}

struct AttentionTile {
  std::int64_t row = 0;  // request
  std::int64_t kv_head = 0;
  std::int64_t first_token = 0;     // among all tokens
  std::int64_t first_position = 0;  // of first_token
  std::int64_t tokens = 0;
  std::int64_t rows = 0;           // tokens * group, of each kv head
  std::int64_t kv_heads = 1;       // kv_head and so many after it, one tile each
  std::int64_t first_segment = 0;  // the segments that are attended one after the other; while one is at work, the next
  std::int64_t last_segment = 0;   // one's rows are asked for
};

// A softmax in progress: out = sums / weight, both relative to e^max.
struct PartialSoftmax {
  float* sums = nullptr;         // [rows, padded(head_dim)]
  float* max = nullptr;          // [rows], -Inf where no position was visible
  float* weight = nullptr;       // [rows]
  std::int64_t head_stride = 0;  // rows from one kv head to the next, where a tile has several
};

// Scratch of whoever works on a tile.
struct TileWorkspace {
  float* queries = nullptr;  // [rows, padded(head_dim)] f32: normalised, rotated, scaled, zeros beyond head_dim
  float* scores = nullptr;   // [rows, kSpan]
  float* rows = nullptr;     // [kNearRows, padded(head_dim)] f32: keys or values
};

namespace avx2 {
// Writes the keys (rotated, normalised) or the values of one kv head of every token into the cache, in token order.
// `head`: scratch of write_scratch_floats(shape).
void paged_write_cache(const PagedAttentionArgs& args, bool value, std::int64_t kv_head, float* head) noexcept;

// Fills `queries`, [rows, padded(head_dim)]; `angles`: scratch of angle_floats(shape).
void paged_prepare_queries(const PagedAttentionArgs& args, const AttentionTile& tile, float* queries,
                           float* angles) noexcept;

// The partial softmax of the tile over the visible positions of one segment.
void paged_attend_segment(const PagedAttentionArgs& args, const AttentionTile& tile, std::int64_t segment,
                          const TileWorkspace& work, const PartialSoftmax& out) noexcept;

// into = into merged with the segment that follows it.
void paged_merge_segment(const PagedAttentionArgs& args, const AttentionTile& tile, const PartialSoftmax& into,
                         const PartialSoftmax& segment) noexcept;

// The sink's share, the division, the output.
void paged_finish_tile(const PagedAttentionArgs& args, const AttentionTile& tile, const PartialSoftmax& total) noexcept;
}  // namespace avx2

namespace avx512 {
void paged_write_cache(const PagedAttentionArgs& args, bool value, std::int64_t kv_head, float* head) noexcept;
void paged_prepare_queries(const PagedAttentionArgs& args, const AttentionTile& tile, float* queries,
                           float* angles) noexcept;
void paged_attend_segment(const PagedAttentionArgs& args, const AttentionTile& tile, std::int64_t segment,
                          const TileWorkspace& work, const PartialSoftmax& out) noexcept;
void paged_merge_segment(const PagedAttentionArgs& args, const AttentionTile& tile, const PartialSoftmax& into,
                         const PartialSoftmax& segment) noexcept;
void paged_finish_tile(const PagedAttentionArgs& args, const AttentionTile& tile, const PartialSoftmax& total) noexcept;
}  // namespace avx512

// The specification: double precision, two passes over the positions, nothing shared with the levels. `scratch` holds
// 2 * head_dim doubles.
void paged_attention_scalar(const PagedAttentionArgs& args, double* scratch) noexcept;

}  // namespace sluice

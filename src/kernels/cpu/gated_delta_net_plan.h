// How a GatedDeltaNet call is cut into work items, and the scratch one item works in. Internal to the kernel.
#pragma once

#include "kernels/cpu/gated_delta_net.h"

namespace sluice::gdn {

// Rows (tokens) and columns the SIMD loops may touch beyond the last real one.
inline constexpr std::int64_t kRowPad = 8;
inline constexpr std::int64_t kColumnAlign = 32;
// Bound on the value heads an item works on at once: their states should fit a core's L2.
inline constexpr std::int64_t kMaxHeadsPerItem = 8;

struct Plan {
  const GatedDeltaNetArgs* args = nullptr;
  float scale = 0;                  // as applied: never 0 for "default"
  std::int64_t queries = 1;         // read-outs of one state head: q_heads / v_heads, at least 1
  std::int64_t heads_per_item = 1;  // consecutive value heads that read one key head and one query head
  std::int64_t items = 0;
  std::int64_t lanes = 0;  // slices of scratch: as many items as may run at once
};

// A request's tokens.
struct Segment {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// One item: `heads` value heads from `head`, of one row.
struct Item {
  std::int64_t row = 0;
  std::int64_t head = 0;
  std::int64_t heads = 0;
};

// Row strides carry 16 floats more than they need, so that a column of rows does not fall into a few cache sets.
inline constexpr std::int64_t kStridePad = 16;
inline constexpr std::int64_t kChunkStride = kGatedDeltaNetChunk + kStridePad;

// f32 buffers of one item, 64-byte aligned. cap = tokens of a piece + kRowPad.
struct Workspace {
  std::int64_t cap = 0;
  std::int64_t kpad = 0;             // row stride of keys and queries: k_dim rounded up, and kStridePad more
  std::int64_t vpad = 0;             // row stride of values and outputs: v_dim rounded up
  float* keys = nullptr;             // [cap, kpad], zero beyond k_dim and beyond the piece
  float* queries = nullptr;          // [queries, cap, kpad], scaled
  float* values = nullptr;           // [cap, vpad]
  float* outputs = nullptr;          // [queries, cap, vpad]
  float* factors = nullptr;          // per key: [cap, kpad] exp(g)
  float* decayed_keys = nullptr;     // [cap, kpad] exp(g) k, for the recurrence
  float* decayed_queries = nullptr;  // [cap, kpad] exp(g) q
  float* updates = nullptr;          // [vpad] u of one token
  float* row_state = nullptr;        // [heads, v_dim, k_dim] for a call without final_state
  // Only where a piece may be chunked. i and j are tokens of the piece, j <= i.
  float* keys_t = nullptr;          // [k_dim, kChunkStride]
  float* queries_t = nullptr;       // [queries, k_dim, kChunkStride]
  float* key_key = nullptr;         // [cap (j), kChunkStride (i)] k_i . k_j
  float* query_key = nullptr;       // [queries, cap (j), kChunkStride (i)] q_i . k_j
  float* solve = nullptr;           // [cap (j), kChunkStride (i)] -D_ij k_i . k_j
  float* read = nullptr;            // [queries, cap (j), kChunkStride (i)] D_ij q_i . k_j
  float* update = nullptr;          // [cap, kColumnAlign] u_j of one block of value columns
  float* update_decayed = nullptr;  // [cap, kColumnAlign] exp(G_n - G_j) u_j
  float* panels = nullptr;  // [heads, panel_floats] states, K-major: [v_dim / columns, k_dim + kRowPad, columns]
  std::int64_t panel_floats = 0;
};

// SIZE_MAX where the exact value does not fit.
std::size_t saturating_product(std::size_t a, std::size_t b) noexcept;
std::size_t saturating_sum(std::size_t a, std::size_t b) noexcept;

Plan make_plan(const GatedDeltaNetArgs& args) noexcept;
Segment segment_of(const GatedDeltaNetArgs& args, std::int64_t row) noexcept;
Item item_of(const Plan& plan, std::int64_t index) noexcept;
// Tokens of the row that capture describes.
std::int64_t captured_tokens(const GatedDeltaNetArgs& args, std::int64_t row) noexcept;
// Lays the buffers of one item out from `base` (null only sizes them); returns the bytes taken, a multiple of 64.
std::size_t lay_out(const GatedDeltaNetShape& shape, std::byte* base, Workspace& workspace) noexcept;

// The first query head and the first output head that read value head `head`.
std::int64_t query_head(const GatedDeltaNetShape& shape, std::int64_t head) noexcept;
std::int64_t output_head(const GatedDeltaNetShape& shape, std::int64_t head) noexcept;

// Where row `row` of the capsule keeps its three regions.
struct Capsule {
  float* decay = nullptr;  // [capacity, decay_width]
  float* key = nullptr;    // [capacity, k_heads, k_dim]
  float* delta = nullptr;  // [capacity, v_heads, v_dim]
};
Capsule capsule_of(const GatedDeltaNetArgs& args, std::int64_t row) noexcept;
// Zeroes what the item's heads own of their row's capsule.
void clear_capsule(const GatedDeltaNetArgs& args, const Item& item) noexcept;

}  // namespace sluice::gdn

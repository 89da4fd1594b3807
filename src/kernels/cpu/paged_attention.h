// Attention of packed, ragged queries over a paged key/value cache (com.microsoft PagedAttention, on a CPU).
//
// Row b owns tokens cu_seqlens[b] .. cu_seqlens[b+1]-1; its i-th new token stands at position past_seqlens[b] + i.
// For every token: split into heads -> q/k RMS norm -> rotary -> the cache write; then, when every token is written,
//   s_j = scale * q.k_j;  s_j = softcap * tanh(s_j / softcap);  p_j = exp(s_j - max) over the visible positions j;
//   out = sum_j p_j v_j / (sum_j p_j + exp(head_sink - max)).
// A token at position p sees positions max(0, p - window + 1) .. p, read through block_table.
//
// Invariance: the sum over positions is cut into fixed spans and segments counted from position 0, so for finite K and
// V a token's bits depend on its own q, its position and the cached values alone: not on the batch, the thread count,
// the block size, the order of pages, nor on whether it came in a prefill of any cut or in a decode step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/executor.h"
#include "kernels/cpu/cu_seqlens.h"
#include "kernels/cpu/level.h"

namespace sluice {

struct PagedAttentionShape {
  std::int64_t tokens = 0;       // new tokens of all rows
  std::int64_t rows = 0;         // requests in the batch
  std::int64_t query_heads = 0;  // a multiple of kv_heads; query head h reads kv head h / (query_heads / kv_heads)
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;            // any positive number
  std::int64_t num_blocks = 0;          // pages in the pool
  std::int64_t block_size = 0;          // positions a page, any positive number
  std::int64_t max_blocks_per_row = 0;  // columns of block_table
  std::int64_t rotary_dim = 0;          // 0 = no rotary; even, rotary_offset + rotary_dim <= head_dim
  std::int64_t rotary_rows = 0;         // rows of the cos and sin tables
};

// Integer inputs, all from outside: pass them through validate_paged_attention_indices before anything else.
struct PagedAttentionIndices {
  const std::int32_t* cu_seqlens = nullptr;    // [rows + 1]
  const std::int32_t* past_seqlens = nullptr;  // [rows] positions already in the cache
  const std::int32_t* block_table =
      nullptr;  // [rows, max_blocks_per_row] page of each run of block_size positions; -1 = unmapped
  const std::int32_t* slot_mapping =
      nullptr;  // [tokens] block * block_size + offset, -1 = do not write; null = through block_table
};

enum class PagedIndexError : std::uint8_t {
  none,
  cu_seqlens,          // see `offsets`
  past_negative,       // index: row, value: past
  too_long,            // index: row, value: past + new, limit: max_blocks_per_row * block_size
  beyond_rotary,       // index: row, value: past + new, limit: rotary_rows
  block_unmapped,      // index: flat into block_table, value: -1, position: the first one in use that falls on it
  block_out_of_range,  // index: flat into block_table, value: block, limit: num_blocks
  slot_out_of_range,   // index: token, value: slot, limit: num_blocks * block_size
};

struct PagedIndexCheck {
  PagedIndexError error = PagedIndexError::none;
  CuSeqlensCheck offsets;  // when error == cu_seqlens
  std::int64_t index = 0;
  std::int64_t value = 0;
  std::int64_t limit = 0;
  std::int64_t position = 0;

  bool ok() const noexcept { return error == PagedIndexError::none; }
};

// Checks every index the kernel will follow. Only positions in use are looked up: those that some new token of the row
// sees (`window` as in PagedAttentionArgs), so table entries before the window or after the end may hold anything.
PagedIndexCheck validate_paged_attention_indices(const PagedAttentionShape& shape, const PagedAttentionIndices& indices,
                                                 std::int64_t window) noexcept;

struct PagedAttentionArgs {
  PagedAttentionShape shape;
  PagedAttentionIndices indices;  // validated

  DType type = DType::f32;        // f32, f16 or bf16: query, key, value, tables, sink, norm weights, output
  DType cache_type = DType::f32;  // f32, f16 or bf16: both caches

  // Token t's heads start at query + t * query_stride (strides in elements). A packed QKV input is three pointers into
  // one buffer with one stride, (query_heads + 2 * kv_heads) * head_dim.
  const void* query = nullptr;  // [tokens, query_heads, head_dim] type
  const void* key = nullptr;    // [tokens, kv_heads, head_dim] type
  const void* value = nullptr;  // [tokens, kv_heads, head_dim] type
  std::int64_t query_stride = 0;
  std::int64_t key_stride = 0;
  std::int64_t value_stride = 0;

  // The caches that are written and read. Where key_cache_in is another buffer, all of it is copied over first.
  // Two tokens that write one slot: the later one wins.
  void* key_cache = nullptr;             // [num_blocks, block_size, kv_heads, head_dim] cache_type
  void* value_cache = nullptr;           // the same
  const void* key_cache_in = nullptr;    // null or key_cache: in place
  const void* value_cache_in = nullptr;  // null or value_cache: in place

  const void* cos = nullptr;  // [rotary_rows, rotary_dim / 2] type
  const void* sin = nullptr;
  std::int64_t rotary_offset = 0;   // first rotated element of a head
  bool rotary_interleaved = false;  // pairs (2i, 2i + 1) instead of (i, i + rotary_dim / 2)

  const void* q_norm_weight = nullptr;  // [head_dim] type, both or neither; y = x / sqrt(mean(x^2) + norm_epsilon) * w
  const void* k_norm_weight = nullptr;
  float norm_epsilon = 1e-6f;

  const void* head_sink = nullptr;  // [query_heads] type
  float scale = 0.0f;               // 0 = 1 / sqrt(head_dim)
  float softcap = 0.0f;             // 0 = none
  std::int64_t window = -1;         // positions a token sees, itself included; -1 = all

  void* output = nullptr;  // [tokens, query_heads, head_dim] type, contiguous
};

// Bytes of scratch for these rows (the offsets and lengths must have been validated).
std::size_t paged_attention_scratch_bytes(const PagedAttentionArgs& args) noexcept;

void paged_attention(Level level, const PagedAttentionArgs& args, std::span<std::byte> scratch,
                     Executor& executor) noexcept;

}  // namespace sluice

#include "kernels/cpu/paged_attention.h"
#include "kernels/cpu/paged_attention_core.h"

namespace sluice {
namespace {

PagedIndexCheck found(PagedIndexError error, std::int64_t index, std::int64_t value, std::int64_t limit) {
  PagedIndexCheck check;
  check.error = error;
  check.index = index;
  check.value = value;
  check.limit = limit;
  return check;
}

// a * b, or the largest value: an extent beyond it bounds nothing.
std::int64_t saturating_product(std::int64_t a, std::int64_t b) {
  std::int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

PagedIndexCheck check_row(const PagedAttentionShape& shape, const PagedAttentionIndices& indices, std::int64_t window,
                          std::int64_t row) {
  const std::int64_t past = indices.past_seqlens[row];
  const std::int64_t added = std::int64_t{indices.cu_seqlens[row + 1]} - indices.cu_seqlens[row];
  const std::int64_t end = past + added;  // both fit 32 bits
  if (past < 0) return found(PagedIndexError::past_negative, row, past, 0);
  const std::int64_t capacity = saturating_product(shape.max_blocks_per_row, shape.block_size);
  if (end > capacity) return found(PagedIndexError::too_long, row, end, capacity);
  if (added == 0) return {};
  if (shape.rotary_dim > 0 && end > shape.rotary_rows) {
    return found(PagedIndexError::beyond_rotary, row, end, shape.rotary_rows);
  }
  const std::int64_t first_seen = first_visible(past, window);
  for (std::int64_t column = first_seen / shape.block_size; column * shape.block_size < end; ++column) {
    const std::int64_t flat = row * shape.max_blocks_per_row + column;
    const std::int64_t block = indices.block_table[flat];
    if (block >= 0 && block < shape.num_blocks) continue;
    PagedIndexCheck check = found(block == -1 ? PagedIndexError::block_unmapped : PagedIndexError::block_out_of_range,
                                  flat, block, shape.num_blocks);
    const std::int64_t start = column * shape.block_size;
    check.position = start > first_seen ? start : first_seen;
    return check;
  }
  return {};
}

}  // namespace

PagedIndexCheck validate_paged_attention_indices(const PagedAttentionShape& shape, const PagedAttentionIndices& indices,
                                                 std::int64_t window) noexcept {
  const std::span offsets(indices.cu_seqlens, static_cast<std::size_t>(shape.rows) + 1);
  PagedIndexCheck check;
  check.offsets = validate_cu_seqlens(offsets, shape.tokens);
  if (!check.offsets.ok()) {
    check.error = PagedIndexError::cu_seqlens;
    return check;
  }
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    check = check_row(shape, indices, window, row);
    if (!check.ok()) return check;
  }
  if (!indices.slot_mapping) return check;
  const std::int64_t slots = saturating_product(shape.num_blocks, shape.block_size);
  for (std::int64_t token = 0; token < shape.tokens; ++token) {
    const std::int64_t slot = indices.slot_mapping[token];
    if (slot < -1 || slot >= slots) return found(PagedIndexError::slot_out_of_range, token, slot, slots);
  }
  return check;
}

}  // namespace sluice

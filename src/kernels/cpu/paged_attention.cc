#include "kernels/cpu/paged_attention.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/paged_attention_core.h"
#include "kernels/cpu/rounding.h"

namespace sluice {
namespace {

// Tiles of long rows are shared out among so many work items, each with its own workspace: enough for any machine's
// threads, few enough for the scratch.
constexpr std::int64_t kMaxSlots = 32;

// Below this many multiply-adds a parallel section costs more than it saves.
constexpr double kSmallWork = 512 << 10;

struct LevelFunctions {
  decltype(&avx2::paged_write_cache) write_cache;
  decltype(&avx2::paged_prepare_queries) prepare_queries;
  decltype(&avx2::paged_attend_segment) attend_segment;
  decltype(&avx2::paged_merge_segment) merge_segment;
  decltype(&avx2::paged_finish_tile) finish_tile;
};

LevelFunctions functions_of(Level level) noexcept {
  if (level == Level::avx2) {
    return {avx2::paged_write_cache, avx2::paged_prepare_queries, avx2::paged_attend_segment, avx2::paged_merge_segment,
            avx2::paged_finish_tile};
  }
  return {avx512::paged_write_cache, avx512::paged_prepare_queries, avx512::paged_attend_segment,
          avx512::paged_merge_segment, avx512::paged_finish_tile};
}

// How the work of one call is cut, from its shape and lengths alone.
//
// A row whose tokens fit one tile (a decode step, a short piece) is split along its past: one item a segment and kv
// head, the partial results kept apart and merged in order afterwards. A longer row is cut into tiles of tokens; a tile
// walks its segments alone.
struct RowPlan {
  std::int64_t first_token = 0;
  std::int64_t first_position = 0;
  std::int64_t tokens = 0;
  std::int64_t first_segment = 0;  // of a split row
  std::int64_t segments = 0;
  std::int64_t items_before = 0;     // split items of the rows before
  std::int64_t tiles_before = 0;     // tiles of the rows before, all kv heads
  std::int64_t partials_before = 0;  // (tile row, segment) pairs of the split rows before, all kv heads
  std::int64_t queries_before = 0;   // tile rows of the split rows before, all kv heads
};

struct CallPlan {
  std::int64_t tile_tokens = 0;  // tokens of a whole tile
  std::int64_t split_items = 0;
  std::int64_t tiles = 0;
  std::int64_t partials = 0;
  std::int64_t queries = 0;
  double work = 0;  // multiply-adds, about
};

bool is_split(const RowPlan& row, std::int64_t tile_tokens) noexcept { return row.tokens <= tile_tokens; }

// Calls each(RowPlan) for every row and returns the totals.
template <typename Each>
CallPlan plan_rows(const PagedAttentionArgs& args, Each each) noexcept {
  const PagedAttentionShape& shape = args.shape;
  CallPlan plan;
  plan.tile_tokens = std::max<std::int64_t>(1, kTileRows * shape.kv_heads / shape.query_heads);
  for (std::int64_t b = 0; b < shape.rows; ++b) {
    RowPlan row;
    row.first_token = args.indices.cu_seqlens[b];
    row.tokens = args.indices.cu_seqlens[b + 1] - row.first_token;
    row.first_position = args.indices.past_seqlens[b];
    row.items_before = plan.split_items;
    row.tiles_before = plan.tiles;
    row.partials_before = plan.partials;
    row.queries_before = plan.queries;
    if (row.tokens > 0) {
      const std::int64_t begin = first_visible(row.first_position, args.window);
      const std::int64_t last = row.first_position + row.tokens - 1;
      row.first_segment = begin / kSegment;
      row.segments = last / kSegment - row.first_segment + 1;
      plan.work +=
          static_cast<double>(last - begin + 1) * static_cast<double>(row.tokens * shape.query_heads * shape.head_dim);
      if (is_split(row, plan.tile_tokens)) {
        plan.split_items += row.segments;
        plan.partials += row.segments * row.tokens * shape.query_heads;
        plan.queries += row.tokens * shape.query_heads;
      } else {
        plan.tiles += ceil_div(row.tokens, plan.tile_tokens) * shape.kv_heads;
      }
    }
    each(b, row);
  }
  return plan;
}

// Hands out 64-byte aligned pieces of a buffer, or counts them when there is none.
class Carver {
 public:
  explicit Carver(std::byte* base) noexcept : base_(base) {}
  template <typename T>
  T* take(std::int64_t count) noexcept {
    T* piece = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return piece;
  }
  std::size_t used() const noexcept { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

// Workspace of one work item. `total` and `segment` serve whole tiles alone.
struct Slot {
  TileWorkspace work;
  float* angles = nullptr;
  PartialSoftmax total;
  PartialSoftmax segment;
};

// Every buffer of one call, in its scratch.
struct Buffers {
  RowPlan* rows = nullptr;     // [rows]
  std::byte* heads = nullptr;  // [3 * kv_heads] pieces of write_scratch_floats, one for each item of the first phase
  float* split_queries = nullptr;  // [plan.queries, width]
  PartialSoftmax partials;         // [plan.partials] rows: (split row, kv head), then segment, then tile row
  std::byte* slots = nullptr;      // [slot_count] pieces of slot_bytes
  std::int64_t slot_count = 0;
  std::size_t slot_bytes = 0;
};

PartialSoftmax carve_partial(Carver& carver, std::int64_t rows, std::int64_t width) noexcept {
  PartialSoftmax partial;
  partial.sums = carver.take<float>(rows * width);
  partial.max = carver.take<float>(rows);
  partial.weight = carver.take<float>(rows);
  return partial;
}

Slot carve_slot(Carver& carver, const PagedAttentionArgs& args, const CallPlan& plan) noexcept {
  const PagedAttentionShape& shape = args.shape;
  const std::int64_t width = padded(shape.head_dim);
  const std::int64_t rows = plan.tile_tokens * (shape.query_heads / shape.kv_heads);
  Slot slot;
  slot.work.scores = carver.take<float>(rows * kSpan);
  slot.work.rows = carver.take<float>(kNearRows * width);
  if (plan.tiles == 0) return slot;
  slot.angles = carver.take<float>(angle_floats(shape));
  slot.work.queries = carver.take<float>(rows * width);
  slot.total = carve_partial(carver, rows, width);
  slot.segment = carve_partial(carver, rows, width);
  return slot;
}

Buffers carve_buffers(Carver& carver, const PagedAttentionArgs& args, const CallPlan& plan) noexcept {
  const PagedAttentionShape& shape = args.shape;
  const std::int64_t width = padded(shape.head_dim);
  Buffers buffers;
  buffers.rows = carver.take<RowPlan>(shape.rows);
  buffers.heads = carver.take<std::byte>(3 * shape.kv_heads * write_scratch_floats(shape) * 4);
  buffers.split_queries = carver.take<float>(plan.queries * width);
  buffers.partials = carve_partial(carver, plan.partials, width);
  Carver counter(nullptr);
  carve_slot(counter, args, plan);
  buffers.slot_bytes = counter.used();
  buffers.slot_count = std::min(kMaxSlots, plan.tiles + plan.split_items);
  buffers.slots = carver.take<std::byte>(buffers.slot_count * static_cast<std::int64_t>(buffers.slot_bytes));
  return buffers;
}

// One call at a SIMD level: prepare (cache writes, queries of split rows), attend, merge.
class Call {
 public:
  Call(Level level, const PagedAttentionArgs& args, std::byte* scratch, Executor& executor) noexcept
      : args_(args), shape_(args.shape), do_(functions_of(level)), executor_(executor) {
    group_ = shape_.query_heads / shape_.kv_heads;
    width_ = padded(shape_.head_dim);
    plan_ = plan_rows(args, [](std::int64_t, const RowPlan&) {});
    Carver carver(scratch);
    buffers_ = carve_buffers(carver, args, plan_);
    plan_rows(args, [&](std::int64_t b, const RowPlan& row) { buffers_.rows[b] = row; });
  }

  void run() noexcept {
    const std::int64_t prepared = shape_.tokens * (shape_.query_heads + 2 * shape_.kv_heads) * shape_.head_dim;
    for_items(3 * shape_.kv_heads, static_cast<double>(prepared), [&](std::int64_t i) noexcept { prepare(i); });
    for_items(buffers_.slot_count, plan_.work, [&](std::int64_t i) noexcept { work_slot(i); });
    if (plan_.partials == 0) return;
    for_items(shape_.rows * shape_.kv_heads, static_cast<double>(plan_.partials * width_),
              [&](std::int64_t i) noexcept {
                const RowPlan& row = buffers_.rows[i / shape_.kv_heads];
                if (row.tokens > 0 && is_split(row, plan_.tile_tokens))
                  merge_split(row, i / shape_.kv_heads, i % shape_.kv_heads);
              });
  }

 private:
  template <typename Body>
  void for_items(std::int64_t count, double work, Body body) noexcept {
    if (work > kSmallWork && count > 1) return parallel_for(executor_, count, body);
    for (std::int64_t i = 0; i < count; ++i) body(i);
  }

  void prepare(std::int64_t item) noexcept {
    const std::int64_t kv_head = item / 3;
    const std::int64_t floats = write_scratch_floats(shape_);
    float* room = reinterpret_cast<float*>(buffers_.heads) + item * floats;
    if (item % 3 < 2) return do_.write_cache(args_, item % 3 == 1, kv_head, room);
    for (std::int64_t b = 0; b < shape_.rows; ++b) {
      const RowPlan& row = buffers_.rows[b];
      if (row.tokens == 0 || !is_split(row, plan_.tile_tokens)) continue;
      do_.prepare_queries(args_, split_tile(row, b, kv_head), split_queries(row, kv_head), room);
    }
  }

  AttentionTile split_tile(const RowPlan& row, std::int64_t b, std::int64_t kv_head) const noexcept {
    return {b, kv_head, row.first_token, row.first_position, row.tokens, row.tokens * group_};
  }

  float* split_queries(const RowPlan& row, std::int64_t kv_head) const noexcept {
    return buffers_.split_queries + (row.queries_before + kv_head * row.tokens * group_) * width_;
  }

  PartialSoftmax split_partial(const RowPlan& row, std::int64_t kv_head, std::int64_t segment) const noexcept {
    const std::int64_t rows = row.tokens * group_;
    const std::int64_t at = row.partials_before + (kv_head * row.segments + segment) * rows;
    return {buffers_.partials.sums + at * width_, buffers_.partials.max + at, buffers_.partials.weight + at,
            row.segments * rows};
  }

  void work_slot(std::int64_t index) noexcept {
    Carver carver(buffers_.slots + static_cast<std::size_t>(index) * buffers_.slot_bytes);
    const Slot slot = carve_slot(carver, args_, plan_);
    for (std::int64_t i = index; i < plan_.tiles; i += buffers_.slot_count) attend_tile(i, slot);
    const std::int64_t begin = plan_.split_items * index / buffers_.slot_count;
    const std::int64_t end = plan_.split_items * (index + 1) / buffers_.slot_count;
    for (std::int64_t i = begin; i < end;) i += attend_split(i, end, slot);
  }

  // The last row whose `before` count is at most `item` and that has items of that kind.
  std::int64_t row_of(std::int64_t item, std::int64_t RowPlan::* before) const noexcept {
    const RowPlan* begin = buffers_.rows;
    const RowPlan* after = std::upper_bound(
        begin, begin + shape_.rows, item, [&](std::int64_t value, const RowPlan& row) { return value < row.*before; });
    return after - begin - 1;
  }

  void attend_tile(std::int64_t item, const Slot& slot) noexcept {
    const std::int64_t b = row_of(item, &RowPlan::tiles_before);
    const RowPlan& row = buffers_.rows[b];
    const std::int64_t inside = item - row.tiles_before;
    const std::int64_t tiles = ceil_div(row.tokens, plan_.tile_tokens);
    // The last tiles see the most positions: they come first, so that none of them is left to one thread at the end.
    const std::int64_t skipped = (tiles - 1 - inside / shape_.kv_heads) * plan_.tile_tokens;
    const std::int64_t tokens = std::min(plan_.tile_tokens, row.tokens - skipped);
    AttentionTile tile{b,      inside % shape_.kv_heads, row.first_token + skipped, row.first_position + skipped,
                       tokens, tokens * group_};
    do_.prepare_queries(args_, tile, slot.work.queries, slot.angles);
    const std::int64_t first = first_visible(tile.first_position, args_.window) / kSegment;
    const std::int64_t last = (tile.first_position + tile.tokens - 1) / kSegment;
    tile.first_segment = first;
    tile.last_segment = last;
    do_.attend_segment(args_, tile, first, slot.work, slot.total);
    for (std::int64_t segment = first + 1; segment <= last; ++segment) {
      do_.attend_segment(args_, tile, segment, slot.work, slot.segment);
      do_.merge_segment(args_, tile, slot.total, slot.segment);
    }
    do_.finish_tile(args_, tile, slot.total);
  }

  // Attends the segments of one row from split item `item` on, as far as they come before `end`, and returns how many.
  std::int64_t attend_split(std::int64_t item, std::int64_t end, const Slot& slot) noexcept {
    const std::int64_t b = row_of(item, &RowPlan::items_before);
    const RowPlan& row = buffers_.rows[b];
    const std::int64_t first = item - row.items_before;
    const std::int64_t count = std::min(end - item, row.segments - first);
    TileWorkspace work = slot.work;
    work.queries = split_queries(row, 0);
    AttentionTile tile = split_tile(row, b, 0);
    tile.kv_heads = shape_.kv_heads;
    tile.first_segment = row.first_segment + first;
    tile.last_segment = tile.first_segment + count - 1;
    for (std::int64_t i = 0; i < count; ++i) {
      do_.attend_segment(args_, tile, tile.first_segment + i, work, split_partial(row, 0, first + i));
    }
    return count;
  }

  void merge_split(const RowPlan& row, std::int64_t b, std::int64_t kv_head) noexcept {
    const AttentionTile tile = split_tile(row, b, kv_head);
    const PartialSoftmax total = split_partial(row, kv_head, 0);
    for (std::int64_t segment = 1; segment < row.segments; ++segment) {
      do_.merge_segment(args_, tile, total, split_partial(row, kv_head, segment));
    }
    do_.finish_tile(args_, tile, total);
  }

  const PagedAttentionArgs& args_;
  const PagedAttentionShape& shape_;
  LevelFunctions do_;
  Executor& executor_;
  std::int64_t group_ = 0;
  std::int64_t width_ = 0;
  CallPlan plan_;
  Buffers buffers_;
};

// The caches that are to be written start as copies of the ones that came in.
void copy_cache(const PagedAttentionArgs& args, const void* from, void* to, Executor& executor) noexcept {
  if (!from || from == to) return;
  const PagedAttentionShape& shape = args.shape;
  const std::int64_t bytes = shape.num_blocks * shape.block_size * shape.kv_heads * shape.head_dim *
                             static_cast<std::int64_t>(dtype_bytes(args.cache_type));
  constexpr std::int64_t kPiece = 1 << 20;
  parallel_for(executor, ceil_div(bytes, kPiece), [&](std::int64_t i) noexcept {
    std::memcpy(static_cast<std::byte*>(to) + i * kPiece, static_cast<const std::byte*>(from) + i * kPiece,
                static_cast<std::size_t>(std::min(kPiece, bytes - i * kPiece)));
  });
}

}  // namespace

std::size_t paged_attention_scratch_bytes(const PagedAttentionArgs& args) noexcept {
  const CallPlan plan = plan_rows(args, [](std::int64_t, const RowPlan&) {});
  Carver counter(nullptr);
  carve_buffers(counter, args, plan);
  const std::size_t alignment = 64;
  return std::max(counter.used(), static_cast<std::size_t>(2 * args.shape.head_dim) * sizeof(double)) + alignment;
}

void paged_attention(Level level, const PagedAttentionArgs& args, std::span<std::byte> scratch,
                     Executor& executor) noexcept {
  copy_cache(args, args.key_cache_in, args.key_cache, executor);
  copy_cache(args, args.value_cache_in, args.value_cache, executor);
  if (args.shape.tokens == 0) return;
  std::byte* aligned = line_aligned(scratch);
  if (level == Level::scalar) return paged_attention_scalar(args, reinterpret_cast<double*>(aligned));
  Call(level, args, aligned, executor).run();
}

}  // namespace sluice

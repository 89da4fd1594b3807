// What happens to one head on its way into attention: RMS norm, rotary, scale, and the cache write.
#include <cstring>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/paged_attention_core.h"
#include "kernels/cpu/rotary_math.h"

namespace sluice::SLUICE_LEVEL {
namespace {

template <typename T>
void widen_row(const T* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; i += kLanes) store(load_up_to(from + i, count - i), to + i);
}

template <typename T>
void narrow_row(const float* from, std::int64_t count, T* to) {
  for (std::int64_t i = 0; i < count; i += kLanes) store_up_to(load(from + i), to + i, count - i);
}

// head: [padded(head_dim)] f32, zeros beyond head_dim.
template <typename T>
void normalise(const PagedAttentionArgs& args, const void* weight, float* head) {
  const std::int64_t n = args.shape.head_dim;
  const T* w = static_cast<const T*>(weight);
  Floats squares = zeros();
  for (std::int64_t i = 0; i < n; i += kLanes) squares = hn::MulAdd(load(head + i), load(head + i), squares);
  const float mean = sum_lanes(squares) / static_cast<float>(n);
  const Floats inverse = hn::Div(all(1.0f), hn::Sqrt(all(mean + args.norm_epsilon)));
  for (std::int64_t i = 0; i < n; i += kLanes) {
    store(hn::Mul(hn::Mul(load(head + i), inverse), load_up_to(w + i, n - i)), head + i);
  }
}

template <typename T>
struct Angles {
  const float* cos = nullptr;
  const float* sin = nullptr;

  Angles(const PagedAttentionArgs& args, std::int64_t position, float* room) {
    const std::int64_t pairs = args.shape.rotary_dim / 2;
    cos = room;
    sin = room + padded(pairs);
    widen_row(static_cast<const T*>(args.cos) + position * pairs, pairs, room);
    widen_row(static_cast<const T*>(args.sin) + position * pairs, pairs, room + padded(pairs));
  }

  void turn(const PagedAttentionArgs& args, float* head) const {
    const std::int64_t pairs = args.shape.rotary_dim / 2;
    float* first = head + args.rotary_offset;
    if (args.rotary_interleaved) {
      rotate_interleaved(first, first, cos, sin, pairs);
    } else {
      rotate_halves<float>({first, first + pairs}, {first, first + pairs}, cos, sin, pairs);
    }
  }
};

struct WrittenToken {
  std::int64_t index = 0;
  std::int64_t position = 0;
  std::int64_t slot = 0;
};

// Calls body for every token that has a slot, in token order: where two share one, the later stays.
template <typename Body>
void for_each_written(const PagedAttentionArgs& args, Body body) {
  const PagedAttentionShape& shape = args.shape;
  const PagedAttentionIndices& indices = args.indices;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const std::int32_t* table = indices.block_table + row * shape.max_blocks_per_row;
    WrittenToken token;
    token.index = indices.cu_seqlens[row];
    token.position = indices.past_seqlens[row];
    for (; token.index < indices.cu_seqlens[row + 1]; ++token.index, ++token.position) {
      if (indices.slot_mapping) {
        token.slot = indices.slot_mapping[token.index];
        if (token.slot < 0) continue;
      } else {
        const std::int64_t block = table[token.position / shape.block_size];
        token.slot = block * shape.block_size + token.position % shape.block_size;
      }
      body(token);
    }
  }
}

template <typename T, typename C>
void write_keys(const PagedAttentionArgs& args, std::int64_t kv_head, float* head) {
  const PagedAttentionShape& shape = args.shape;
  for_each_written(args, [&](const WrittenToken& token) {
    widen_row(static_cast<const T*>(args.key) + token.index * args.key_stride + kv_head * shape.head_dim,
              shape.head_dim, head);
    if (args.k_norm_weight) normalise<T>(args, args.k_norm_weight, head);
    if (shape.rotary_dim > 0) Angles<T>(args, token.position, head + padded(shape.head_dim)).turn(args, head);
    narrow_row(head, shape.head_dim,
               static_cast<C*>(args.key_cache) + (token.slot * shape.kv_heads + kv_head) * shape.head_dim);
  });
}

template <typename T, typename C>
void write_values(const PagedAttentionArgs& args, std::int64_t kv_head) {
  const PagedAttentionShape& shape = args.shape;
  for_each_written(args, [&](const WrittenToken& token) {
    const T* from = static_cast<const T*>(args.value) + token.index * args.value_stride + kv_head * shape.head_dim;
    C* to = static_cast<C*>(args.value_cache) + (token.slot * shape.kv_heads + kv_head) * shape.head_dim;
    for (std::int64_t i = 0; i < shape.head_dim; i += kLanes) {
      store_up_to(load_up_to(from + i, shape.head_dim - i), to + i, shape.head_dim - i);
    }
  });
}

template <typename T>
void prepare(const PagedAttentionArgs& args, const AttentionTile& tile, float* queries, float* angles) {
  const PagedAttentionShape& shape = args.shape;
  const std::int64_t group = shape.query_heads / shape.kv_heads;
  const std::int64_t width = padded(shape.head_dim);
  const Floats scale =
      args.scale == 0.0f ? hn::Div(all(1.0f), hn::Sqrt(all(static_cast<float>(shape.head_dim)))) : all(args.scale);
  for (std::int64_t t = 0; t < tile.tokens; ++t) {
    const T* from = static_cast<const T*>(args.query) + (tile.first_token + t) * args.query_stride +
                    tile.kv_head * group * shape.head_dim;
    for (std::int64_t h = 0; h < group; ++h) {
      float* head = queries + (t * group + h) * width;
      std::memset(head, 0, static_cast<std::size_t>(width) * sizeof(float));
      widen_row(from + h * shape.head_dim, shape.head_dim, head);
      if (args.q_norm_weight) normalise<T>(args, args.q_norm_weight, head);
      if (shape.rotary_dim > 0) Angles<T>(args, tile.first_position + t, angles).turn(args, head);
      for (std::int64_t i = 0; i < width; i += kLanes) store(hn::Mul(load(head + i), scale), head + i);
    }
  }
}

}  // namespace

void paged_write_cache(const PagedAttentionArgs& args, bool value, std::int64_t kv_head, float* head) noexcept {
  with_float_type(args.type, [&](auto type) {
    with_float_type(args.cache_type, [&](auto cache_type) {
      if (value) {
        write_values<decltype(type), decltype(cache_type)>(args, kv_head);
      } else {
        write_keys<decltype(type), decltype(cache_type)>(args, kv_head, head);
      }
    });
  });
}

void paged_prepare_queries(const PagedAttentionArgs& args, const AttentionTile& tile, float* queries,
                           float* angles) noexcept {
  with_float_type(args.type, [&](auto type) { prepare<decltype(type)>(args, tile, queries, angles); });
}

}  // namespace sluice::SLUICE_LEVEL

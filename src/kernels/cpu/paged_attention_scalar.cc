#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/paged_attention_core.h"

namespace sluice {
namespace {

double element(DType type, const void* base, std::int64_t i) {
  switch (type) {
    case DType::f16:
      return to_f32(static_cast<const f16*>(base)[i]);
    case DType::bf16:
      return to_f32(static_cast<const bf16*>(base)[i]);
    default:
      return static_cast<const float*>(base)[i];
  }
}

void put(DType type, void* base, std::int64_t i, double x) {
  const float single = static_cast<float>(x);
  switch (type) {
    case DType::f16:
      static_cast<f16*>(base)[i] = to_f16(single);
      break;
    case DType::bf16:
      static_cast<bf16*>(base)[i] = to_bf16(single);
      break;
    default:
      static_cast<float*>(base)[i] = single;
  }
}

struct Token {
  std::int64_t index = 0;  // among all tokens
  std::int64_t row = 0;
  std::int64_t position = 0;
};

// One head of a token as attention uses it: element i = load(i), then normalised and rotated in place by two helpers.
void normalise(const PagedAttentionArgs& args, const void* weight, double* head) {
  const std::int64_t n = args.shape.head_dim;
  double squares = 0;
  for (std::int64_t i = 0; i < n; ++i) squares += head[i] * head[i];
  const double inverse = 1 / std::sqrt(squares / static_cast<double>(n) + double{args.norm_epsilon});
  for (std::int64_t i = 0; i < n; ++i) head[i] *= inverse * element(args.type, weight, i);
}

void rotate(const PagedAttentionArgs& args, std::int64_t position, double* head) {
  const std::int64_t pairs = args.shape.rotary_dim / 2;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const double cos = element(args.type, args.cos, position * pairs + i);
    const double sin = element(args.type, args.sin, position * pairs + i);
    double& u = head[args.rotary_offset + (args.rotary_interleaved ? 2 * i : i)];
    double& v = head[args.rotary_offset + (args.rotary_interleaved ? 2 * i + 1 : i + pairs)];
    const double turned = u * sin + v * cos;
    u = u * cos - v * sin;
    v = turned;
  }
}

std::int64_t cache_offset(const PagedAttentionShape& shape, std::int64_t slot, std::int64_t kv_head) {
  return (slot * shape.kv_heads + kv_head) * shape.head_dim;
}

std::int64_t table_slot(const PagedAttentionArgs& args, std::int64_t row, std::int64_t position) {
  const PagedAttentionShape& shape = args.shape;
  const std::int64_t block = args.indices.block_table[row * shape.max_blocks_per_row + position / shape.block_size];
  return block * shape.block_size + position % shape.block_size;
}

void write_token(const PagedAttentionArgs& args, const Token& token, double* head) {
  const PagedAttentionShape& shape = args.shape;
  const std::int64_t slot =
      args.indices.slot_mapping ? args.indices.slot_mapping[token.index] : table_slot(args, token.row, token.position);
  if (slot < 0) return;
  for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
    const std::int64_t key = token.index * args.key_stride + h * shape.head_dim;
    const std::int64_t value = token.index * args.value_stride + h * shape.head_dim;
    const std::int64_t to = cache_offset(shape, slot, h);
    for (std::int64_t i = 0; i < shape.head_dim; ++i) head[i] = element(args.type, args.key, key + i);
    if (args.k_norm_weight) normalise(args, args.k_norm_weight, head);
    rotate(args, token.position, head);
    for (std::int64_t i = 0; i < shape.head_dim; ++i) put(args.cache_type, args.key_cache, to + i, head[i]);
    for (std::int64_t i = 0; i < shape.head_dim; ++i) {
      put(args.cache_type, args.value_cache, to + i, element(args.type, args.value, value + i));
    }
  }
}

double score(const PagedAttentionArgs& args, const double* query, std::int64_t key) {
  const std::int64_t n = args.shape.head_dim;
  double dot = 0;
  for (std::int64_t i = 0; i < n; ++i) dot += query[i] * element(args.cache_type, args.key_cache, key + i);
  const double s = dot * (args.scale == 0 ? 1 / std::sqrt(static_cast<double>(n)) : double{args.scale});
  return args.softcap > 0 ? double{args.softcap} * std::tanh(s / double{args.softcap}) : s;
}

// `head` holds the query; `sums` is room for the output of one head.
void attend_head(const PagedAttentionArgs& args, const Token& token, std::int64_t query_head, const double* query,
                 double* sums) {
  const PagedAttentionShape& shape = args.shape;
  const std::int64_t kv_head = query_head / (shape.query_heads / shape.kv_heads);
  const std::int64_t begin = first_visible(token.position, args.window);
  const auto offset_of = [&](std::int64_t p) { return cache_offset(shape, table_slot(args, token.row, p), kv_head); };
  double max =
      args.head_sink ? element(args.type, args.head_sink, query_head) : -std::numeric_limits<double>::infinity();
  for (std::int64_t p = begin; p <= token.position; ++p) max = std::max(max, score(args, query, offset_of(p)));
  double weight = args.head_sink ? std::exp(element(args.type, args.head_sink, query_head) - max) : 0;
  std::fill_n(sums, shape.head_dim, 0.0);
  for (std::int64_t p = begin; p <= token.position; ++p) {
    const double share = std::exp(score(args, query, offset_of(p)) - max);
    weight += share;
    for (std::int64_t i = 0; i < shape.head_dim; ++i) {
      sums[i] += share * element(args.cache_type, args.value_cache, offset_of(p) + i);
    }
  }
  const std::int64_t to = (token.index * shape.query_heads + query_head) * shape.head_dim;
  for (std::int64_t i = 0; i < shape.head_dim; ++i) put(args.type, args.output, to + i, sums[i] / weight);
}

template <typename Body>
void for_each_token(const PagedAttentionArgs& args, Body body) {
  for (std::int64_t row = 0; row < args.shape.rows; ++row) {
    const std::int64_t first = args.indices.cu_seqlens[row];
    for (std::int64_t t = first; t < args.indices.cu_seqlens[row + 1]; ++t) {
      body(Token{t, row, args.indices.past_seqlens[row] + t - first});
    }
  }
}

}  // namespace

void paged_attention_scalar(const PagedAttentionArgs& args, double* scratch) noexcept {
  double* const head = scratch;
  double* const sums = scratch + args.shape.head_dim;
  for_each_token(args, [&](const Token& token) { write_token(args, token, head); });
  for_each_token(args, [&](const Token& token) {
    for (std::int64_t h = 0; h < args.shape.query_heads; ++h) {
      const std::int64_t query = token.index * args.query_stride + h * args.shape.head_dim;
      for (std::int64_t i = 0; i < args.shape.head_dim; ++i) head[i] = element(args.type, args.query, query + i);
      if (args.q_norm_weight) normalise(args, args.q_norm_weight, head);
      rotate(args, token.position, head);
      attend_head(args, token, h, head, sums);
    }
  });
}

}  // namespace sluice

#include "ops/validate_paged_attention.h"

#include <limits>

#include "base/error.h"
#include "base/shape.h"

namespace sluice::ops {
namespace {

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();

void expect_text(const Attributes& attributes, std::string_view name, std::string_view only, std::string_view what) {
  const std::string found = attributes.text(name);
  if (found != only) fail("attribute {}: expected '{}' ({} are not served), found '{}'", name, only, what, found);
}

// Neither, or both with one shape.
bool come_together(const Argument& first, const Argument& second) {
  if (first.present == second.present) return first.present;
  fail("{} and {} come together or not at all: {} is missing", label(first), label(second),
       label(first.present ? second : first));
}

void read_cache(const PagedAttentionInputs& in, PagedAttentionArgs& args) {
  expect_float(in.key_cache);
  expect_present(in.value_cache, "kv_cache_layout is SEPARATE");
  expect_same_dtype(in.value_cache, in.key_cache);
  expect_rank(in.key_cache, 4, "[num_blocks, block_size, kv heads, head size]");
  for (const std::size_t axis : {std::size_t{1}, std::size_t{3}}) {
    expect_positive(in.key_cache, axis, axis == 1 ? "block_size" : "the head size");
  }
  PagedAttentionShape& shape = args.shape;
  shape.num_blocks = in.key_cache.shape[0];
  shape.block_size = in.key_cache.shape[1];
  shape.head_dim = in.key_cache.shape[3];
  expect_shape(in.key_cache, {shape.num_blocks, shape.block_size, shape.kv_heads, shape.head_dim},
               "[num_blocks, block_size, kv_num_heads, head size]");
  expect_shape(in.value_cache, in.key_cache.shape, "key_cache's shape");
  args.cache_type = in.key_cache.dtype;
}

const void* heads_at(const Argument& packed, std::int64_t element) {
  if (packed.data == nullptr) return nullptr;
  const auto bytes = element * static_cast<std::int64_t>(dtype_bytes(packed.dtype));
  return static_cast<const std::byte*>(packed.data) + bytes;
}

void read_heads(const PagedAttentionInputs& in, PagedAttentionArgs& args) {
  expect_float(in.query);
  expect_rank(in.query, 2, "[tokens, width]");
  PagedAttentionShape& shape = args.shape;
  shape.tokens = in.query.shape[0];
  args.type = in.query.dtype;
  const std::int64_t query_width = Dims{shape.query_heads, shape.head_dim}.elements();
  const std::int64_t kv_width = Dims{shape.kv_heads, shape.head_dim}.elements();
  args.query = in.query.data;
  if (come_together(in.key, in.value)) {
    expect_same_dtype(in.key, in.query);
    expect_same_dtype(in.value, in.query);
    expect_shape(in.query, {shape.tokens, query_width}, "[tokens, num_heads * head size]");
    expect_shape(in.key, {shape.tokens, kv_width}, "[tokens, kv_num_heads * head size]");
    expect_shape(in.value, {shape.tokens, kv_width}, "[tokens, kv_num_heads * head size]");
    args.key = in.key.data;
    args.value = in.value.data;
    args.query_stride = query_width;
    args.key_stride = args.value_stride = kv_width;
    return;
  }
  const std::int64_t width = query_width + 2 * kv_width;
  expect_shape(in.query, {shape.tokens, width}, "[tokens, (num_heads + 2 * kv_num_heads) * head size]");
  args.key = heads_at(in.query, query_width);
  args.value = heads_at(in.query, query_width + kv_width);
  args.query_stride = args.key_stride = args.value_stride = width;
}

void read_rotary(const PagedAttentionAttributes& attributes, const PagedAttentionInputs& in, PagedAttentionArgs& args) {
  const bool tables = come_together(in.cos_cache, in.sin_cache);
  if (!attributes.do_rotary) return;
  if (!tables) expect_present(in.cos_cache, "do_rotary needs it");
  expect_same_dtype(in.cos_cache, in.query);
  expect_same_dtype(in.sin_cache, in.query);
  expect_rank(in.cos_cache, 2, "[positions, rotary / 2]");
  expect_shape(in.sin_cache, in.cos_cache.shape, "cos_cache's shape");
  PagedAttentionShape& shape = args.shape;
  const std::int64_t half = in.cos_cache.shape[1];
  if (half < 1 || half > (shape.head_dim - attributes.rotary_offset) / 2) {
    fail("{}: expected 1..{} columns for a head size of {} and rotary_offset {}, found {}", label(in.cos_cache),
         (shape.head_dim - attributes.rotary_offset) / 2, shape.head_dim, attributes.rotary_offset, half);
  }
  shape.rotary_rows = in.cos_cache.shape[0];
  shape.rotary_dim = 2 * half;
  args.cos = in.cos_cache.data;
  args.sin = in.sin_cache.data;
  args.rotary_offset = attributes.rotary_offset;
  args.rotary_interleaved = attributes.rotary_interleaved;
}

void read_vectors(const PagedAttentionInputs& in, PagedAttentionArgs& args) {
  const PagedAttentionShape& shape = args.shape;
  if (come_together(in.q_norm_weight, in.k_norm_weight)) {
    expect_same_dtype(in.q_norm_weight, in.query);
    expect_same_dtype(in.k_norm_weight, in.query);
    expect_shape(in.q_norm_weight, {shape.head_dim}, "[head size]");
    expect_shape(in.k_norm_weight, {shape.head_dim}, "[head size]");
    args.q_norm_weight = in.q_norm_weight.data;
    args.k_norm_weight = in.k_norm_weight.data;
  }
  if (in.head_sink.present) {
    expect_same_dtype(in.head_sink, in.query);
    expect_shape(in.head_sink, {shape.query_heads}, "[num_heads]");
    args.head_sink = in.head_sink.data;
  }
  for (const Argument* scale : {&in.k_scale, &in.v_scale}) expect_absent(*scale, "quantised caches are not served");
  if (in.attention_metadata.present) {
    expect_dtype(in.attention_metadata, {DType::i32});
    const Dims& found = in.attention_metadata.shape;
    if (found != Dims{2} && found != Dims{3}) {
      fail("{}: expected [2] or [3], found {}", label(in.attention_metadata), to_string(found.span()));
    }
  }
}

[[noreturn]] void refuse_indices(const PagedAttentionInputs& in, const PagedAttentionShape& shape,
                                 const PagedIndexCheck& wrong) {
  const std::int64_t columns = shape.max_blocks_per_row;
  switch (wrong.error) {
    case PagedIndexError::cu_seqlens:
      refuse_offsets(in.cumulative_sequence_length, wrong.offsets, shape.tokens);
    case PagedIndexError::past_negative:
      fail("{}: expected lengths of at least 0, found {} for row {}", label(in.past_seqlens), wrong.value, wrong.index);
    case PagedIndexError::too_long:
      fail("{}: expected at most {} positions (blocks a row times block size), found {} in row {}",
           label(in.past_seqlens), wrong.limit, wrong.value, wrong.index);
    case PagedIndexError::beyond_rotary:
      fail("{}: expected a row for each of {} positions of row {}, found {}", label(in.cos_cache), wrong.value,
           wrong.index, wrong.limit);
    case PagedIndexError::block_unmapped:
      fail("{}: expected a block for position {} of row {}, found {} at column {}", label(in.block_table),
           wrong.position, wrong.index / columns, wrong.value, wrong.index % columns);
    case PagedIndexError::block_out_of_range:
      fail("{}: expected blocks from 0 to below {}, found {} in row {} at column {}", label(in.block_table),
           wrong.limit, wrong.value, wrong.index / columns, wrong.index % columns);
    case PagedIndexError::slot_out_of_range:
      fail("{}: expected slots from -1 to below {}, found {} for token {}", label(in.slot_mapping), wrong.limit,
           wrong.value, wrong.index);
    case PagedIndexError::none:
      break;
  }
  fail("{}: malformed", label(in.block_table));
}

void read_indices(const PagedAttentionInputs& in, PagedAttentionCall& call) {
  PagedAttentionShape& shape = call.args.shape;
  call.cu_seqlens = Indices(in.cumulative_sequence_length);
  call.past_seqlens = Indices(in.past_seqlens);
  call.block_table = Indices(in.block_table);
  call.slot_mapping = Indices(in.slot_mapping);
  shape.rows = expect_offsets(in.cumulative_sequence_length, call.cu_seqlens, shape.tokens);
  expect_shape(in.past_seqlens, {shape.rows}, "[B]");
  expect_rank(in.block_table, 2, "[B, blocks]");
  shape.max_blocks_per_row = in.block_table.shape[1];
  expect_shape(in.block_table, {shape.rows, shape.max_blocks_per_row}, "[B, blocks]");
  if (in.slot_mapping.present) expect_shape(in.slot_mapping, {shape.tokens}, "[tokens]");
  Dims{shape.max_blocks_per_row, shape.block_size}.elements();
  call.args.indices = {.cu_seqlens = call.cu_seqlens.data(),
                       .past_seqlens = call.past_seqlens.data(),
                       .block_table = call.block_table.data(),
                       .slot_mapping = in.slot_mapping.present ? call.slot_mapping.data() : nullptr};
  const PagedIndexCheck found = validate_paged_attention_indices(shape, call.args.indices, call.args.window);
  if (!found.ok()) refuse_indices(in, shape, found);
}

}  // namespace

PagedAttentionAttributes read_paged_attention(const Attributes& attributes) {
  PagedAttentionAttributes result;
  result.num_heads = attributes.count("num_heads");
  result.kv_num_heads = attributes.count("kv_num_heads");
  if (result.num_heads % result.kv_num_heads != 0) {
    fail("attribute num_heads: expected a multiple of kv_num_heads, {}, found {}", result.kv_num_heads,
         result.num_heads);
  }
  result.scale = attributes.number("scale", 0.0f);
  result.softcap = attributes.number("softcap", 0.0f);
  if (result.softcap < 0) fail("attribute softcap: expected 0 or more, found {}", result.softcap);
  result.local_window_size = attributes.integer_in("local_window_size", -1, kInt32Max);
  if (result.local_window_size == 0) fail("attribute local_window_size: expected -1 or at least 1, found 0");
  if (!attributes.flag("is_causal")) fail("attribute is_causal: expected 1 (0 is not served), found 0");
  result.do_rotary = attributes.flag("do_rotary");
  result.rotary_interleaved = attributes.flag("rotary_interleaved");
  result.rotary_offset = attributes.integer("rotary_offset", 0);
  if (result.rotary_offset < 0) fail("attribute rotary_offset: expected 0 or more, found {}", result.rotary_offset);
  result.qk_norm_epsilon = attributes.number("qk_norm_epsilon", 1e-6f);
  if (!(result.qk_norm_epsilon > 0)) {
    fail("attribute qk_norm_epsilon: expected more than 0, found {}", result.qk_norm_epsilon);
  }
  result.v_head_size = attributes.integer("v_head_size", 0);
  for (const char* name : {"k_quant_type", "v_quant_type"}) expect_text(attributes, name, "NONE", "quantised caches");
  for (const char* name : {"k_cache_dtype", "v_cache_dtype"}) expect_text(attributes, name, "", "quantised caches");
  expect_text(attributes, "kv_cache_layout", "SEPARATE", "latent caches");
  return result;
}

PagedAttentionCall validate_paged_attention(const PagedAttentionAttributes& attributes,
                                            const PagedAttentionInputs& in) {
  PagedAttentionCall call;
  PagedAttentionArgs& args = call.args;
  args.shape.query_heads = attributes.num_heads;
  args.shape.kv_heads = attributes.kv_num_heads;
  args.scale = attributes.scale;
  args.softcap = attributes.softcap;
  args.window = attributes.local_window_size;
  args.norm_epsilon = attributes.qk_norm_epsilon;
  read_cache(in, args);
  if (attributes.v_head_size != 0 && attributes.v_head_size != args.shape.head_dim) {
    fail("attribute v_head_size: expected 0 or the head size, {}, found {}", args.shape.head_dim,
         attributes.v_head_size);
  }
  read_heads(in, args);
  read_rotary(attributes, in, args);
  read_vectors(in, args);
  read_indices(in, call);
  call.output = {args.shape.tokens, args.shape.query_heads * args.shape.head_dim};
  call.cache = in.key_cache.shape;
  call.output.elements();
  return call;
}

}  // namespace sluice::ops

// Attention over growing and paged caches, and rotary positions.
#include "base/error.h"
#include "opset/operators.h"
#include "opset/shape_context.h"
#include "opset/type_sets.h"

namespace sluice {
namespace {

// Present caches hold total_sequence_length positions; with a shared buffer as many as the past ones.
void infer_group_query_attention(ShapeContext& context) {
  const Extents& query = require_rank(context, 0, 3);
  if (!context.has_input(1) || !context.has_input(2) || !context.has_input(3) || !context.has_input(4)) {
    fail("only separate query, key and value with past caches are described here");
  }
  const auto head_dim = divide(query[2], extent(context.integer("num_heads")));
  if (!head_dim) fail("input 0 has last extent {}, not a multiple of num_heads", to_string(query[2]));
  const Extent kv_heads = extent(context.integer("kv_num_heads"));
  const Extents kv{query[0], query[1], multiply(kv_heads, *head_dim)};
  require_shape(context, 1, kv);
  require_shape(context, 2, kv);
  const Extents past{query[0], kv_heads, require_rank(context, 3, 4)[2], *head_dim};
  require_shape(context, 3, past);
  require_shape(context, 4, past);
  require_rank(context, 5, 1);
  require_rank(context, 6, 0);
  context.set_output_shape(0, query);
  const Extents present{query[0], kv_heads, extent("total_sequence_length"), *head_dim};
  if (context.has_output(1)) context.set_output_shape(1, present);
  if (context.has_output(2)) context.set_output_shape(2, present);
}

void infer_paged_attention(ShapeContext& context) {
  const Extents& query = require_rank(context, 0, 2);
  const Extents& cache = require_rank(context, 3, 4);
  const Extent heads = extent(context.integer("num_heads"));
  const Extent kv_heads = extent(context.integer("kv_num_heads"));
  require_shape(context, 3, {cache[0], cache[1], kv_heads, cache[3]});
  const Extent query_width = multiply(heads, cache[3]);
  const Extent kv_width = multiply(kv_heads, cache[3]);
  if (context.has_input(1) != context.has_input(2)) fail("inputs 1 and 2 come together or not at all");
  if (context.has_input(1)) {
    require_shape(context, 0, {query[0], query_width});
    require_shape(context, 1, {query[0], kv_width});
    require_shape(context, 2, {query[0], kv_width});
  } else {
    require_shape(context, 0, {query[0], add(query_width, multiply(extent(2), kv_width))});
  }
  require_shape(context, 4, cache);
  require_rank(context, 5, 1);
  const Extents& past = require_rank(context, 6, 1);
  require_shape(context, 7, {past[0], require_rank(context, 7, 2)[1]});
  context.set_output_shape(0, {query[0], query_width});
  if (context.has_output(1)) context.set_output_shape(1, cache);
  if (context.has_output(2)) context.set_output_shape(2, cache);
}

// input [B, S, heads*head_dim] or [B, heads, S, head_dim]; the tables have one row a position.
void infer_rotary(ShapeContext& context) {
  const Extents& input = context.input_shape(0);
  if (input.size() != 3 && input.size() != 4) fail("input 0 has shape {}: expected 3 or 4 axes", to_string(input));
  require_shape(context, 3, require_rank(context, 2, 2));
  context.set_output_shape(0, input);
}

void infer_mrotary(ShapeContext& context) {
  const Extents& ids = require_rank(context, 1, 3);
  require_shape(context, 1, {extent(3), ids[1], ids[2]});
  infer_rotary(context);
}

constexpr TypeSet kCaches{DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::i8, DType::u8};

constexpr AttributeSpec kGroupQueryAttentionAttributes[] = {
    required_attribute("num_heads", AttributeKind::integer),
    required_attribute("kv_num_heads", AttributeKind::integer),
    int_attribute("causal", 1),
    optional_attribute("scale", AttributeKind::number),
    optional_attribute("softcap", AttributeKind::number),
    int_attribute("local_window_size", -1),
    int_attribute("sliding_window_cache", 0),
    optional_attribute("do_rotary", AttributeKind::integer),
    optional_attribute("rotary_interleaved", AttributeKind::integer),
    int_attribute("smooth_softmax", -1),
    int_attribute("qk_output", 0),
    text_attribute("k_quant_type", "NONE"),
    text_attribute("v_quant_type", "NONE"),
    optional_attribute("kv_cache_bit_width", AttributeKind::integer),
    float_attribute("qk_norm_epsilon", 1e-6f),
    optional_attribute("q_norm_epsilon", AttributeKind::number),
    optional_attribute("k_norm_epsilon", AttributeKind::number),
};
constexpr TypeVariable kGroupQueryAttentionTypes[] = {
    {"T", kActivations}, {"T_CACHE", kCaches}, {"T_KV_SCALE", kF32}, {"M", kI32}, {"I64", kI64}};
constexpr PortSpec kGroupQueryAttentionInputs[] = {
    {"query", "T"},
    {"key", "T", Presence::optional},
    {"value", "T", Presence::optional},
    {"past_key", "T_CACHE", Presence::optional},
    {"past_value", "T_CACHE", Presence::optional},
    {"seqlens_k", "M"},
    {"total_sequence_length", "M"},
    {"cos_cache", "T", Presence::optional},
    {"sin_cache", "T", Presence::optional},
    {"position_ids", "I64", Presence::optional},
    {"attention_bias", "T", Presence::optional},
    {"head_sink", "T", Presence::optional},
    {"k_scale", "T_KV_SCALE", Presence::optional},
    {"v_scale", "T_KV_SCALE", Presence::optional},
    {"q_norm_weight", "T", Presence::optional},
    {"k_norm_weight", "T", Presence::optional},
    {"query_seqlens", "M", Presence::optional},
};
constexpr PortSpec kGroupQueryAttentionOutputs[] = {
    {"output", "T"},
    {"present_key", "T_CACHE", Presence::optional},
    {"present_value", "T_CACHE", Presence::optional},
    {"output_qk", "T", Presence::optional},
};

constexpr AttributeSpec kPagedAttentionAttributes[] = {
    required_attribute("num_heads", AttributeKind::integer),
    required_attribute("kv_num_heads", AttributeKind::integer),
    optional_attribute("scale", AttributeKind::number),
    optional_attribute("softcap", AttributeKind::number),
    int_attribute("local_window_size", -1),
    int_attribute("is_causal", 1),
    optional_attribute("do_rotary", AttributeKind::integer),
    optional_attribute("rotary_interleaved", AttributeKind::integer),
    optional_attribute("rotary_offset", AttributeKind::integer),
    optional_attribute("qk_norm_epsilon", AttributeKind::number),
    text_attribute("k_quant_type", "NONE"),
    text_attribute("v_quant_type", "NONE"),
    text_attribute("k_cache_dtype", ""),
    text_attribute("v_cache_dtype", ""),
    text_attribute("kv_cache_layout", "SEPARATE"),
    optional_attribute("v_head_size", AttributeKind::integer),
};
// The runtime's schema knows f16 and bf16; f32 is ours.
constexpr TypeVariable kPagedAttentionTypes[] = {
    {"T", kActivations}, {"T_CACHE", kCaches}, {"T_KV_SCALE", kF32}, {"S", kI32}};
constexpr PortSpec kPagedAttentionInputs[] = {
    {"query", "T"},
    {"key", "T", Presence::optional},
    {"value", "T", Presence::optional},
    {"key_cache", "T_CACHE"},
    {"value_cache", "T_CACHE", Presence::optional},
    {"cumulative_sequence_length", "S"},
    {"past_seqlens", "S"},
    {"block_table", "S"},
    {"cos_cache", "T", Presence::optional},
    {"sin_cache", "T", Presence::optional},
    {"slot_mapping", "S", Presence::optional},
    {"head_sink", "T", Presence::optional},
    {"q_norm_weight", "T", Presence::optional},
    {"k_norm_weight", "T", Presence::optional},
    {"k_scale", "T_KV_SCALE", Presence::optional},
    {"v_scale", "T_KV_SCALE", Presence::optional},
    {"attention_metadata", "S", Presence::optional},
};
constexpr PortSpec kPagedAttentionOutputs[] = {{"output", "T", Presence::required, 2},
                                               {"key_cache_out", "T_CACHE", Presence::optional},
                                               {"value_cache_out", "T_CACHE", Presence::optional}};

constexpr AttributeSpec kRotaryAttributes[] = {
    optional_attribute("scale", AttributeKind::number),
    optional_attribute("interleaved", AttributeKind::integer),
    optional_attribute("rotary_embedding_dim", AttributeKind::integer),
    optional_attribute("num_heads", AttributeKind::integer),
    optional_attribute("is_packed_batching", AttributeKind::integer),
};
constexpr AttributeSpec kMRotaryAttributes[] = {
    required_attribute("mrope_section", AttributeKind::integers),
    optional_attribute("mrope_layout", AttributeKind::integer),
    optional_attribute("scale", AttributeKind::number),
    optional_attribute("interleaved", AttributeKind::integer),
    optional_attribute("rotary_embedding_dim", AttributeKind::integer),
    optional_attribute("num_heads", AttributeKind::integer),
    optional_attribute("is_packed_batching", AttributeKind::integer),
};
constexpr TypeVariable kRotaryTypes[] = {{"T", kActivations}, {"M", kI64}};
constexpr PortSpec kRotaryInputs[] = {{"input", "T"}, {"position_ids", "M"}, {"cos_cache", "T"}, {"sin_cache", "T"}};
constexpr PortSpec kRotaryOutputs[] = {{"output", "T"}};

}  // namespace

constinit const OperatorSpec kGroupQueryAttention{.domain = kMicrosoftDomain,
                                                  .name = "GroupQueryAttention",
                                                  .attributes = kGroupQueryAttentionAttributes,
                                                  .types = kGroupQueryAttentionTypes,
                                                  .inputs = kGroupQueryAttentionInputs,
                                                  .outputs = kGroupQueryAttentionOutputs,
                                                  .infer = infer_group_query_attention};

constinit const OperatorSpec kPagedAttention{.domain = kMicrosoftDomain,
                                             .name = "PagedAttention",
                                             .attributes = kPagedAttentionAttributes,
                                             .types = kPagedAttentionTypes,
                                             .inputs = kPagedAttentionInputs,
                                             .outputs = kPagedAttentionOutputs,
                                             .infer = infer_paged_attention};

constinit const OperatorSpec kRotaryEmbedding{.domain = kMicrosoftDomain,
                                              .name = "RotaryEmbedding",
                                              .attributes = kRotaryAttributes,
                                              .types = kRotaryTypes,
                                              .inputs = kRotaryInputs,
                                              .outputs = kRotaryOutputs,
                                              .infer = infer_rotary};

constinit const OperatorSpec kMRotaryEmbedding{.domain = kMicrosoftDomain,
                                               .name = "MRotaryEmbedding",
                                               .attributes = kMRotaryAttributes,
                                               .types = kRotaryTypes,
                                               .inputs = kRotaryInputs,
                                               .outputs = kRotaryOutputs,
                                               .infer = infer_mrotary};

}  // namespace sluice

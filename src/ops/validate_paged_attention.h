// PagedAttention's contract, checked: from a node's attributes and inputs to the kernel's arguments.
#pragma once

#include "kernels/cpu/paged_attention.h"
#include "ops/argument.h"
#include "ops/attributes.h"

namespace sluice::ops {

struct PagedAttentionAttributes {
  std::int64_t num_heads = 0;
  std::int64_t kv_num_heads = 0;
  float scale = 0.0f;                   // 0 = 1 / sqrt(head size)
  float softcap = 0.0f;                 // 0 = none
  std::int64_t local_window_size = -1;  // positions, -1 = all
  bool do_rotary = false;
  bool rotary_interleaved = false;
  std::int64_t rotary_offset = 0;
  float qk_norm_epsilon = 1e-6f;
  std::int64_t v_head_size = 0;  // 0 = the head size, the only one served
};

// Refuses by name what is not served: quantised caches, LATENT, is_causal 0.
PagedAttentionAttributes read_paged_attention(const Attributes& attributes);

struct PagedAttentionInputs {
  Argument query;                       // [tokens, nh * hs], or packed [tokens, (nh + 2 * kvh) * hs]
  Argument key;                         // [tokens, kvh * hs]; absent with a packed query
  Argument value;                       // like key
  Argument key_cache;                   // [num_blocks, block_size, kvh, hs]
  Argument value_cache;                 // like key_cache
  Argument cumulative_sequence_length;  // [B + 1]
  Argument past_seqlens;                // [B]
  Argument block_table;                 // [B, max blocks a row]
  Argument cos_cache;                   // [positions, rotary / 2]; read only with do_rotary
  Argument sin_cache;                   // like cos_cache
  Argument slot_mapping;                // [tokens], may be absent
  Argument head_sink;                   // [nh], may be absent
  Argument q_norm_weight;               // [hs], both or neither
  Argument k_norm_weight;
  Argument k_scale;  // refused: quantised caches only
  Argument v_scale;
  Argument attention_metadata;  // [2] or [3]; steers kernels elsewhere, changes nothing here
};

// args lacks only output and the two caches. May be moved, not copied.
struct PagedAttentionCall {
  PagedAttentionArgs args;
  Dims output;  // [tokens, nh * hs]
  Dims cache;   // [num_blocks, block_size, kvh, hs]
  Indices cu_seqlens;
  Indices past_seqlens;
  Indices block_table;
  Indices slot_mapping;
};

PagedAttentionCall validate_paged_attention(const PagedAttentionAttributes& attributes,
                                            const PagedAttentionInputs& inputs);

}  // namespace sluice::ops

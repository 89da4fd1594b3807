// The two kinds of step a decoder graph takes, in the words of the model: ids and lengths in, logits out.
#pragma once

#include <cstdint>
#include <span>

#include "session/session.h"

namespace sluice {

// One state tensor of a step: read through `past`, written through `present`. In place when both have the same address.
struct StateBinding {
  TensorRef past;
  TensorRef present;
};

// Equal-length rows, for Layout::dense.
// growing_kv states have two forms:
//   in place: past and present are the same [batch, kv_heads, capacity, head_dim], capacity >= past_length + tokens;
//     tokens are written at past_length;
//   apart: past is [batch, kv_heads, past_length, head_dim], present [batch, kv_heads, past_length + tokens, head_dim].
// conv is [batch, channels, kernel - 1], recurrent [batch, value_heads, ...]: the manifest's shape with batch put in.
struct DenseStep {
  std::int64_t batch = 1;
  std::int64_t past_length = 0;                  // tokens that every row has behind it
  std::span<const std::int64_t> input_ids = {};  // [batch, tokens]
  std::span<const StateBinding> states = {};     // in the order of GraphInfo::states
  TensorRef logits = {};                         // [batch, tokens, vocab]; [batch, 1, vocab] with prune_lm_head
};

// Ragged rows one after another, for Layout::packed. The caller owns the pools and says where each row's blocks are.
struct PackedStep {
  std::span<const std::int64_t> input_ids = {};     // [tokens]
  std::span<const std::int32_t> cu_seqlens = {};    // [batch + 1]; row b has tokens cu_seqlens[b] .. cu_seqlens[b + 1]
  std::span<const std::int32_t> past_lengths = {};  // [batch] tokens that each row has behind it
  std::span<const std::int32_t> block_table = {};   // [batch, max_blocks]; -1: no block
  std::span<const std::int32_t> logits_indices = {};  // tokens whose logits are wanted; only with prune_lm_head
  std::span<const std::int32_t> capture_count = {};   // [batch]; only with state_update_capacity > 0
  bool state_update_active = false;                   // likewise
  std::span<const StateBinding> states =
      {};                 // in the order of GraphInfo::states; paged pools [blocks, block_size, ...]
  TensorRef logits = {};  // [tokens, vocab]; [logits_indices, vocab] with prune_lm_head
  std::span<const PortBinding> state_updates = {};  // outputs "state_update.*" wanted
};

// Both throw Error as Session::run does. Positions follow from the past lengths.
void run_step(const Session& session, const DenseStep& step);
void run_step(const Session& session, const PackedStep& step);

// What the symbols in a state's shape stand for.
struct StateExtents {
  std::int64_t batch = 1;       // leading extent of conv, recurrent and growing_kv
  std::int64_t tokens = 0;      // length of a growing_kv
  std::int64_t blocks = 0;      // leading extent of a paged_kv
  std::int64_t block_size = 0;  // tokens in a block of a paged_kv, where the graph leaves it open
};

// The manifest's shape of a state with its symbols replaced; its numbers stay. Throws Error for any other symbol.
Shape state_shape(const StateInfo& state, const StateExtents& extents);

}  // namespace sluice

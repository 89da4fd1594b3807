// Where tokens come in and logits go out.
#pragma once

#include "graph/context.h"

namespace sluice {

// -> [tokens, hidden]
Value embed_tokens(DecoderContext& c);

// With a pruned head, keeps the rows of x [tokens, hidden] that logits are asked for: the last position of each dense
// row, the packed rows of logits_indices. Without one, gives x.
Value select_rows(DecoderContext& c, std::string_view label, Value x);

// x [rows, hidden], normalised -> the graph output "logits": dense [batch_size, sequence_length or 1, vocab], packed
// [num_tokens or num_logits, vocab]; f32 where activations are bf16.
void add_logits(DecoderContext& c, Value x);

}  // namespace sluice

// Rotary positions: the tables, and the rotation of query and key heads.
#pragma once

#include "graph/context.h"

namespace sluice {

// The tables [max_length, rotary_dim/2] f32: attention_factor times cos and sin of position * inverse_frequency, in
// double, rounded once. Nothing when no dimension rotates.
void add_rotary_tables(DecoderContext& c);

// Rotates the first rotary_dim dimensions of every head: x [tokens, heads, head_dim] -> dense
// [batch_size, sequence_length, heads*head_dim], packed [tokens, heads*head_dim].
Value rotate_heads(DecoderContext& c, std::string_view label, Value x);

}  // namespace sluice

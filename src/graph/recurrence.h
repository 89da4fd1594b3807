// The recurrent operator of a linear-attention layer, in each of its forms: which inputs, gates and normalisation the
// operator gets, and what is computed in front of it.
#pragma once

#include "graph/context.h"

namespace sluice {

struct RecurrenceInputs {
  Value query, key, value;  // [tokens, key_dim | key_dim | value_dim], dense [batch_size, sequence_length, ..]
  Value a, b;               // [tokens, value heads]: raw decay and beta
};

// -> [tokens, value_dim]; the layer's recurrent state moves on.
Value recur(DecoderContext& c, std::int64_t layer, const RecurrenceInputs& inputs);

}  // namespace sluice

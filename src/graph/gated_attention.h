// Full attention with a sigmoid gate on its output.
#pragma once

#include "graph/context.h"

namespace sluice {

// x [tokens, hidden], normalised -> [tokens, hidden]. Keys and values join the layer's cache: growing
// (GroupQueryAttention) in the dense layout, paged (PagedAttention) in the packed one.
Value gated_attention(DecoderContext& c, std::int64_t layer, Value x);

}  // namespace sluice

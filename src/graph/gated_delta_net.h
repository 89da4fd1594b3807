// Linear attention by the gated delta rule: projections, causal convolution, gates, recurrence, gated norm.
#pragma once

#include "graph/context.h"

namespace sluice {

// x [tokens, hidden], normalised -> [tokens, hidden]. The layer's convolution and recurrent states move on.
Value gated_delta_net(DecoderContext& c, std::int64_t layer, Value x);

}  // namespace sluice

// A sparse mixture of experts beside a shared one.
#pragma once

#include "graph/context.h"

namespace sluice {

// x [tokens, hidden] -> [tokens, hidden]: the experts_per_token best experts by softmax of the router's logits,
// weighted (and normalised if the config says so), plus sigmoid(shared_gate x) * shared(x) where there is a shared
// expert.
Value mixture_of_experts(DecoderContext& c, std::int64_t layer, Value x);

}  // namespace sluice

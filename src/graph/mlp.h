// The gated MLP: down(activation(gate x) * up x).
#pragma once

#include "graph/context.h"

namespace sluice {

// x [tokens, hidden] -> [tokens, hidden]; the weights are <prefix>.gate, .up, .down.
Value gated_mlp(DecoderContext& c, const std::string& prefix, std::int64_t intermediate, Value x);

}  // namespace sluice

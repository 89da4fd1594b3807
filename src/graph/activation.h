// The model's activation function (hidden_act).
#pragma once

#include "graph/context.h"

namespace sluice {

// silu is written x * sigmoid(x), which the runtime fuses.
Value activate(DecoderContext& c, std::string_view label, Value x);

}  // namespace sluice

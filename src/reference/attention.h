// Gated full attention: grouped heads, normalised and rotated queries and keys, output times sigmoid of a gate.
#pragma once

#include "reference/layer.h"
#include "reference/state.h"

namespace sluice::reference {

// x [tokens, hidden] -> [tokens, hidden]. The first token stands at `position`; appends to state.keys and state.values.
template <typename T>
Rows<T> gated_attention(const LayerContext<T>& layer, const Rows<T>& x, std::int64_t position, LayerState<T>& state);

}  // namespace sluice::reference

// Gated DeltaNet (Yang et al. 2024, "Gated Delta Networks: Improving Mamba2 with Delta Rule", eq. 10), token by token.
#pragma once

#include "reference/layer.h"
#include "reference/state.h"

namespace sluice::reference {

// x [tokens, hidden] -> [tokens, hidden]; reads and advances state.conv and state.recurrent.
template <typename T>
Rows<T> gated_delta_net(const LayerContext<T>& layer, const Rows<T>& x, LayerState<T>& state);

}  // namespace sluice::reference

// The two kinds of feed-forward block: a gated MLP, and a mixture of such experts beside a gated shared one.
#pragma once

#include "reference/layer.h"

namespace sluice::reference {

// down(act(gate x) * up x): x [tokens, hidden] -> [tokens, hidden]. `prefix` is "mlp" or "moe.shared".
template <typename T>
Rows<T> gated_mlp(const LayerContext<T>& layer, std::string_view prefix, const Rows<T>& x);

// Softmax over all experts, the best k (ties to the lower index), their weights divided by their sum where the config
// says so, summed in order of rank; plus sigmoid(shared_gate x) * shared(x).
template <typename T>
Rows<T> mixture_of_experts(const LayerContext<T>& layer, const Rows<T>& x);

}  // namespace sluice::reference

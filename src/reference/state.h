// What a sequence carries from one call to the next.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/rows.h"

namespace sluice::reference {

// A linear layer uses `conv` and `recurrent`, a full-attention layer `keys` and `values`; the others stay empty.
template <typename T>
struct LayerState {
  Rows<T> conv;              // [conv_kernel - 1, conv_dim] last inputs of the convolution, oldest first, channels q|k|v
  std::vector<T> recurrent;  // [v_heads, k_dim, v_dim] S of the delta rule
  Rows<T> keys;              // [tokens, kv_heads * head_dim] after norm and rotation
  Rows<T> values;            // [tokens, kv_heads * head_dim]
};

template <typename T>
struct State {
  std::int64_t tokens = 0;  // seen so far: the position of the next one
  std::vector<LayerState<T>> layers;
};

}  // namespace sluice::reference

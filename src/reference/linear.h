// y = x W^T + b over weights that stay in the checkpoint: rows are widened as they are used.
#pragma once

#include <optional>

#include "base/executor.h"
#include "reference/rows.h"
#include "weights/weight_source.h"

namespace sluice::reference {

// Rows [first, first + rows) of a canonical weight seen as [all leading extents, last extent].
struct MatrixView {
  const CanonicalWeight* weight = nullptr;
  std::int64_t first = 0;
  std::int64_t rows = 0;  // outputs
  std::int64_t cols = 0;  // inputs
};

// The whole weight as a matrix: [out, in].
MatrixView matrix(const CanonicalWeight& weight);
// One matrix of a stacked weight [n, out, in].
MatrixView matrix(const CanonicalWeight& weight, std::int64_t index);

// x [tokens, in] -> [tokens, out]. A token's result does not depend on the tokens beside it.
template <typename T>
Rows<T> linear(const Rows<T>& x, const MatrixView& weight, Executor& executor);
template <typename T>
Rows<T> linear(const Rows<T>& x, const CanonicalWeight& weight, Executor& executor,
               const CanonicalWeight* bias = nullptr);

}  // namespace sluice::reference

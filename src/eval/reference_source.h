// The reference as a source of logits. The one place of eval/ that sees reference/.
#pragma once

#include <memory>

#include "base/executor.h"
#include "eval/logits_source.h"
#include "weights/weight_source.h"

namespace sluice {

struct ReferenceOptions {
  double qk_norm_epsilon = 1e-6;
  std::int64_t num_layers = -1;   // leading layers; negative: all
  bool single_precision = false;  // float instead of double: twice as fast
};

// A source that computes straight from the checkpoint. `model` and `executor` must outlive it. The pieces of feed() do
// not change its results, so that a sequence is computed once, however often it is started again.
std::unique_ptr<LogitsSource> make_reference_source(const ModelSource& model, const ReferenceOptions& options,
                                                    Executor& executor);

}  // namespace sluice

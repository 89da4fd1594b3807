// RMS norms. Weights are plain: y = x / sqrt(mean(x^2) + epsilon) * weight, over the last axis.
#pragma once

#include "graph/context.h"

namespace sluice {

// x [.., weight]
Value rms_norm(DecoderContext& c, std::string_view label, Value x, Value weight, double epsilon);

// The next block's input and the residual stream it came from.
struct Residual {
  Value normed;  // [tokens, hidden]
  Value stream;  // [tokens, hidden]; absent after the last norm
};
// The stream takes in a block's output, then is normalised.
Residual add_and_norm(DecoderContext& c, std::string_view label, Value block_output, Value stream,
                      const std::string& weight, bool keep_stream = true);

// x [.., heads, dim] divided by sqrt(sum(x^2) + 1e-6) over the last axis, times `scale`: one RMS norm, whose mean is
// the sum over dim, with epsilon 1e-6/dim and the constant scale/sqrt(dim) as its weight.
Value l2_norm(DecoderContext& c, std::string_view label, Value x, double scale);

}  // namespace sluice

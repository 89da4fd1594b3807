#include "graph/norm.h"

#include <cmath>

#include "opset/operators.h"

namespace sluice {

Value rms_norm(DecoderContext& c, std::string_view label, Value x, Value weight, double epsilon) {
  return c.g.emit(
      kRMSNormalization, label, {x, weight},
      {{"axis", std::int64_t{-1}}, {"epsilon", static_cast<float>(epsilon)}, {"stash_type", std::int64_t{1}}});
}

Residual add_and_norm(DecoderContext& c, std::string_view label, Value block_output, Value stream,
                      const std::string& weight, bool keep_stream) {
  std::vector<bool> wanted{true};
  if (keep_stream) wanted = {true, false, false, true};
  const std::vector<Value> outputs =
      c.g.emit(kSkipSimplifiedLayerNormalization, label, {block_output, stream, c.vector(weight, {c.config.hidden})},
               {{"epsilon", static_cast<float>(c.config.rms_eps)}}, wanted);
  return {outputs.front(), keep_stream ? outputs.back() : Value{}};
}

Value l2_norm(DecoderContext& c, std::string_view label, Value x, double scale) {
  const std::int64_t dim = c.g.shape(x).back().value;
  const auto size = static_cast<double>(dim);
  const Value weight = c.g.filled(c.plan.activation, dim, scale / std::sqrt(size));
  return rms_norm(c, label, x, weight, c.plan.qk_norm_epsilon / size);
}

}  // namespace sluice

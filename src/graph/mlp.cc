#include "graph/mlp.h"

#include "graph/activation.h"
#include "opset/operators.h"

namespace sluice {

Value gated_mlp(DecoderContext& c, const std::string& prefix, std::int64_t intermediate, Value x) {
  const Value gate = activate(c, "activation", c.linear("gate", x, prefix + ".gate", intermediate));
  const Value up = c.linear("up", x, prefix + ".up", intermediate);
  return c.linear("down", c.g.emit(kMul, "product", {gate, up}), prefix + ".down", c.config.hidden);
}

}  // namespace sluice

#include "graph/activation.h"

#include "opset/operators.h"

namespace sluice {

Value activate(DecoderContext& c, std::string_view label, Value x) {
  switch (c.config.activation) {
    case Activation::silu:
      return c.g.emit(kMul, label, {x, c.g.emit(kSigmoid, label, {x})});
    case Activation::gelu_tanh:
      return c.g.emit(kGelu, label, {x}, {{"approximate", std::string("tanh")}});
    case Activation::gelu_erf:
      return c.g.emit(kGelu, label, {x}, {{"approximate", std::string("none")}});
    case Activation::relu:
      break;
  }
  return c.g.emit(kRelu, label, {x});
}

}  // namespace sluice

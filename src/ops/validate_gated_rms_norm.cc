#include "ops/validate_gated_rms_norm.h"

#include "base/error.h"
#include "base/shape.h"

namespace sluice::ops {
namespace {

NormGate parse_activation(std::string_view text) {
  if (text == "silu" || text == "swish") return NormGate::silu;
  if (text == "sigmoid") return NormGate::sigmoid;
  refuse_text("activation", "silu, swish or sigmoid", text);
}

}  // namespace

GatedRmsNormAttributes read_gated_rms_norm(const Attributes& attributes) {
  GatedRmsNormAttributes result;
  result.epsilon = attributes.number("epsilon");
  if (result.epsilon < 0) fail("attribute epsilon: expected 0 or more, found {}", result.epsilon);
  result.activation = parse_activation(attributes.text("activation"));
  return result;
}

GatedRmsNormArgs validate_gated_rms_norm(const GatedRmsNormAttributes& attributes, const Argument& x,
                                         const Argument& scale, const Argument& gate) {
  expect_float(x);
  expect_same_dtype(scale, x);
  expect_same_dtype(gate, x);
  expect_shape(gate, x.shape, "X's shape");
  const std::int64_t width = scale.shape.elements();
  if (width < 1) fail("{}: expected at least one element, found {}", label(scale), to_string(scale.shape.span()));
  if (x.shape.rank() == 0 || x.shape.last() % width != 0) {
    fail("{}: expected a last extent that is a multiple of the {} elements of {}, found {}", label(x), width,
         label(scale), to_string(x.shape.span()));
  }
  GatedRmsNormArgs args;
  args.groups = x.shape.elements() / width;
  args.width = width;
  args.type = x.dtype;
  args.input = x.data;
  args.scale = scale.data;
  args.gate = gate.data;
  args.epsilon = attributes.epsilon;
  args.activation = attributes.activation;
  return args;
}

}  // namespace sluice::ops

// Our own domain: products with weights as the checkpoint stores them. Activations are f32.
#include "base/error.h"
#include "opset/operators.h"
#include "opset/shape_context.h"
#include "opset/type_sets.h"

namespace sluice {
namespace {

// x [.., K], weight [N, K], bias [N] -> [.., N].
void infer_linear(ShapeContext& context) {
  const Extents& x = context.input_shape(0);
  const Extents& weight = require_rank(context, 1, 2);
  if (x.empty() || !may_equal(x.back(), weight[1])) {
    fail("inputs 0 and 1 have shapes {} and {}: their last extents differ", to_string(x), to_string(weight));
  }
  require_shape(context, 2, {weight[0]});
  Extents output(x.begin(), x.end() - 1);
  output.push_back(weight[0]);
  context.set_output_shape(0, output);
}

// x [T,H], router_logits [T,E]; gate_up [E,2I,H] (an expert's gate rows, then its up rows), or gate and up apart,
// [E,I,H] each; down [E,H,I] -> [T,H].
void infer_moe(ShapeContext& context) {
  const Extents& x = require_rank(context, 0, 2);
  const Extents& router = require_rank(context, 1, 2);
  require_shape(context, 1, {x[0], router[1]});
  const Extents& down = require_rank(context, 3, 3);
  require_shape(context, 3, {router[1], x[1], down[2]});
  const bool apart = context.has_input(4);
  require_shape(context, 2, {router[1], apart ? down[2] : multiply(extent(2), down[2]), x[1]});
  require_shape(context, 4, {router[1], down[2], x[1]});
  context.set_output_shape(0, x);
}

constexpr TypeVariable kTypes[] = {{"T", kF32}, {"TW", kActivations}};
constexpr PortSpec kLinearInputs[] = {{"x", "T"}, {"weight", "TW"}, {"bias", "T", Presence::optional}};
constexpr PortSpec kOutputs[] = {{"y", "T"}};

constexpr AttributeSpec kMoEAttributes[] = {
    required_attribute("k", AttributeKind::integer), int_attribute("normalize", 1),
    text_attribute("activation", "silu"),  // or gelu_tanh
};
constexpr PortSpec kMoEInputs[] = {
    {"x", "T"}, {"router_logits", "T"}, {"gate_up", "TW"}, {"down", "TW"}, {"up", "TW", Presence::optional}};

}  // namespace

constinit const OperatorSpec kSluiceLinear{.domain = kSluiceDomain,
                                           .name = "Linear",
                                           .types = kTypes,
                                           .inputs = kLinearInputs,
                                           .outputs = kOutputs,
                                           .infer = infer_linear};

constinit const OperatorSpec kSluiceMoE{.domain = kSluiceDomain,
                                        .name = "MoE",
                                        .attributes = kMoEAttributes,
                                        .types = kTypes,
                                        .inputs = kMoEInputs,
                                        .outputs = kOutputs,
                                        .infer = infer_moe};

}  // namespace sluice

#include "graph/moe.h"

#include "graph/mlp.h"
#include "opset/operators.h"

namespace sluice {
namespace {

Value routed_experts(DecoderContext& c, const std::string& prefix, Value x, Value logits) {
  const MoeConfig& moe = *c.config.moe;
  const Shape gate_up{moe.experts, 2 * moe.intermediate, c.config.hidden};
  const Shape down{moe.experts, c.config.hidden, moe.intermediate};
  const std::int64_t normalize = moe.normalize_top_k ? 1 : 0;
  if (c.plan.linear == LinearForm::linear) {
    const bool silu = c.config.activation == Activation::silu;
    return c.g.emit(kSluiceMoE, "",
                    {x, logits, c.stored_weight(prefix + ".gate_up", gate_up), c.stored_weight(prefix + ".down", down)},
                    {{"activation", std::string(silu ? "silu" : "gelu_tanh")},
                     {"k", moe.experts_per_token},
                     {"normalize", normalize}});
  }
  // swiglu with its defaults alpha 1, beta 0 and no limit is silu(gate) * up; fusion 1 is gate and up rows in turn.
  return c.g.emit(kMoE, "",
                  {x,
                   logits,
                   c.matrix(prefix + ".gate_up", gate_up, {Transform::interleave_gate_up}),
                   {},
                   c.matrix(prefix + ".down", down)},
                  {{"activation_type", std::string("swiglu")},
                   {"k", moe.experts_per_token},
                   {"normalize_routing_weights", normalize},
                   {"swiglu_fusion", std::int64_t{1}}});
}

}  // namespace

Value mixture_of_experts(DecoderContext& c, std::int64_t layer, Value x) {
  const auto whole = c.g.scope("moe");
  const std::string prefix = layer_weight(layer, "moe");
  const MoeConfig& moe = *c.config.moe;
  const Value logits = c.linear("router", x, prefix + ".router", moe.experts);
  const Value routed = routed_experts(c, prefix, x, logits);
  if (moe.shared_intermediate == 0) return routed;
  const auto shared_scope = c.g.scope("shared");
  const Value shared = gated_mlp(c, prefix + ".shared", moe.shared_intermediate, x);
  const Value gate = c.g.emit(kSigmoid, "gate", {c.linear("shared_gate", x, prefix + ".shared_gate", 1)});
  return c.g.emit(kGatedAdd, "", {routed, shared, gate});
}

}  // namespace sluice

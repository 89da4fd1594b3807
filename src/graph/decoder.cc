#include "graph/decoder.h"

#include <fmt/format.h>

#include "graph/context.h"
#include "graph/gated_attention.h"
#include "graph/gated_delta_net.h"
#include "graph/head.h"
#include "graph/mlp.h"
#include "graph/moe.h"
#include "graph/norm.h"
#include "graph/ports.h"
#include "graph/rope.h"

namespace sluice {
namespace {

// Between layers: what the last block gave, not yet added to the residual stream. The first layer has no block before.
struct Hidden {
  Value stream;        // [tokens, hidden]
  Value block_output;  // [tokens, hidden]
};

Value feed_forward(DecoderContext& c, std::int64_t layer, Value x) {
  if (c.config.is_moe(layer)) return mixture_of_experts(c, layer, x);
  const auto whole = c.g.scope("mlp");
  return gated_mlp(c, layer_weight(layer, "mlp"), c.config.intermediate, x);
}

Hidden decoder_layer(DecoderContext& c, std::int64_t layer, const Hidden& in) {
  const auto whole = c.g.scope(fmt::format("layers.{}", layer));
  const std::string input_norm = layer_weight(layer, "input_norm");
  const Residual input =
      in.block_output
          ? add_and_norm(c, "input_norm", in.block_output, in.stream, input_norm)
          : Residual{rms_norm(c, "input_norm", in.stream, c.vector(input_norm, {c.config.hidden}), c.config.rms_eps),
                     in.stream};
  Value mixed =
      c.config.is_linear(layer) ? gated_delta_net(c, layer, input.normed) : gated_attention(c, layer, input.normed);
  Value stream = input.stream;
  if (layer + 1 == c.plan.layers) {
    // Nothing after the last mixer looks at other rows than its own.
    mixed = select_rows(c, "selected_mixer", mixed);
    stream = select_rows(c, "selected_stream", stream);
  }
  const Residual middle = add_and_norm(c, "post_norm", mixed, stream, layer_weight(layer, "post_norm"));
  return {middle.stream, feed_forward(c, layer, middle.normed)};
}

bool any_attention(const DecoderContext& c) {
  for (std::int64_t layer = 0; layer < c.plan.layers; ++layer) {
    if (!c.config.is_linear(layer)) return true;
  }
  return false;
}

}  // namespace

DecoderGraph build_decoder(const HybridConfig& config, const ExportPlan& plan, const WeightDTypes& source_dtype) {
  DecoderGraph decoder;
  decoder.model.opsets = {{std::string(kOnnxDomain), 23}, {std::string(kMicrosoftDomain), 1}};
  if (plan.linear == LinearForm::linear) decoder.model.opsets.push_back({std::string(kSluiceDomain), 1});
  decoder.info.role = "decoder";
  decoder.info.file = "model.onnx";

  DecoderContext c(decoder, config, plan, source_dtype);
  add_inputs(c);
  if (any_attention(c)) add_rotary_tables(c);
  Hidden hidden{embed_tokens(c), {}};
  for (std::int64_t layer = 0; layer < plan.layers; ++layer) hidden = decoder_layer(c, layer, hidden);
  add_logits(c, add_and_norm(c, "norm", hidden.block_output, hidden.stream, "norm", false).normed);
  add_outputs(c);
  return decoder;
}

}  // namespace sluice

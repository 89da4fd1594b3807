#include "graph/head.h"

#include "graph/ports.h"
#include "opset/operators.h"

namespace sluice {

Value embed_tokens(DecoderContext& c) {
  const auto whole = c.g.scope("embed_tokens");
  const Value table = c.stored_weight("embed_tokens", {c.config.vocab, c.config.hidden});
  const Value ids = c.dense() ? c.g.reshape("ids", c.in.input_ids, {-1}) : c.in.input_ids;
  return c.g.cast("", c.g.emit(kGather, "", {table, ids}), c.plan.activation);
}

Value select_rows(DecoderContext& c, std::string_view label, Value x) {
  if (!c.plan.prune_lm_head) return x;
  const auto whole = c.g.scope(label);
  if (!c.dense()) return c.g.emit(kGather, "", {x, c.in.logits_indices});
  return c.g.emit(kGather, "", {c.to_rows("rows", x), c.g.scalar(-1)}, {{"axis", std::int64_t{1}}});
}

void add_logits(DecoderContext& c, Value x) {
  const auto whole = c.g.scope("lm_head");
  Value logits = c.linear("", x, c.config.tied ? "embed_tokens" : "lm_head", c.config.vocab);
  if (c.plan.activation == DType::bf16) logits = c.g.cast("f32", logits, DType::f32);
  if (c.dense()) {
    logits = c.plan.prune_lm_head ? c.g.reshape("rows", logits, {0, 1, c.config.vocab}) : c.to_rows("rows", logits);
  }
  set_logits(c, logits);
}

}  // namespace sluice

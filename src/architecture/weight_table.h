// Which weights a model of a family has: our name, its shape, the checkpoint tensors it comes from, and how.
//
// Canonical names (the only ones graph/, reference/ and export/ know); H hidden, V vocab, I intermediate, E experts:
//   embed_tokens [V,H]   lm_head [V,H] (absent when tied)   norm [H]
//   layers.N.input_norm [H]   layers.N.post_norm [H]
//   layers.N.linear.qkv [conv_dim,H] (rows q|k|v)   .z [value_dim,H]   .b [Hv,H]   .a [Hv,H]   .conv [conv_dim,1,K]
//   layers.N.linear.A_log [Hv]   .dt_bias [Hv]   .norm [dv] (plain weight)   .out [H,value_dim]
//   layers.N.attn.q_gate [heads*2*head_dim,H] (rows per head: query|gate)   .k  .v [kv_heads*head_dim,H]
//   layers.N.attn.o [H,heads*head_dim]   .q_norm [head_dim]   .k_norm [head_dim]
//   layers.N.attn.q_gate_bias   .k_bias   .v_bias   .o_bias (with attention_bias)
//   layers.N.mlp.gate [I,H]   .up [I,H]   .down [H,I]
//   layers.N.moe.router [E,H]   .gate_up [E,2I,H] (gate rows first)   .down [E,H,I]
//   layers.N.moe.shared.gate  .up  .down   layers.N.moe.shared_gate [1,H]
// Every RMS norm is canonical as a plain weight: zero-centred ones (1 + w) carry Elementwise::plus_one.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "architecture/hybrid_config.h"
#include "base/shape.h"

namespace sluice {

// What happens to each value after the rows are in canonical order.
enum class Elementwise { none, plus_one };

// Rows [first, first + count) of the checkpoint tensor `source` (an index into WeightForm::sources), seen as
// [product of all but the last extent, last extent].
struct RowRun {
  std::int32_t source = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// A tensor the checkpoint must hold, in exactly this shape.
struct SourceTensor {
  std::string
      name;  // without the model prefix: "layers.0.linear_attn.A_log"; lm_head.weight may also stand at the root
  Shape shape;
  std::string_view axes;  // the config keys behind the shape, for messages: "vocab_size, hidden_size"
};

// One way a checkpoint may store a canonical weight, whose rows are the runs, one after the other.
struct WeightForm {
  std::vector<SourceTensor> sources;
  std::vector<RowRun> runs;
};

struct WeightSpec {
  std::string name;  // canonical
  Shape shape;
  std::vector<WeightForm>
      forms;  // at least one; the one whose first source is present is meant (experts fused or apart)
  Elementwise elementwise = Elementwise::none;
};

// Every weight of the model, embedding first, then layer by layer, then norm and lm_head.
std::vector<WeightSpec> weight_table(const HybridConfig& config);

// A model family: which model types it reads, how it spells its weights. One file each in families/, which defines
// `extern const Family family_<file name>`; the build lists them.
struct Family {
  std::string_view name;                          // HybridConfig::family
  std::span<const std::string_view> model_types;  // of config.json, at the root or in text_config
  bool experts = false;  // MLPs are mixtures of experts, unless mlp_only_layers or decoder_sparse_step say not
  bool always_normalizes_top_k = false;  // norm_topk_prob is not asked
  // Appends the weights of one layer.
  void (*add_layer)(const HybridConfig& config, std::int64_t layer, std::vector<WeightSpec>& table) = nullptr;
};

std::span<const Family* const> families();
// The family of a model type, or null.
const Family* find_family(std::string_view model_type);

}  // namespace sluice

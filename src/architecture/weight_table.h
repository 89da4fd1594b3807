// Which weights a model of a family has: our name, its shape, the checkpoint tensors it comes from, and how.
//
// Canonical names (the only ones graph/, reference/ and export/ know); H hidden, V vocab, I intermediate, E experts:
//   embed_tokens [V,H]   lm_head [V,H] (absent when tied)   norm [H]
//   layers.N.input_norm [H]   layers.N.post_norm [H]
//   layers.N.linear.qkv [conv_dim,H] (rows q|k|v)   .z [value_dim,H]   .b [Hv,H]   .a [Hv,H]   .conv [conv_dim,1,K]
//   layers.N.linear.A_log [Hv]   .dt_bias [Hv]   .norm [dv] (plain weight)   .out [H,value_dim]
//   layers.N.attn.q_gate [heads*2*head_dim,H] (rows per head: query|gate)   .k  .v [kv_heads*head_dim,H]   .o [H,heads*head_dim]
//   layers.N.attn.q_norm [head_dim]   .k_norm [head_dim]   and with attention_bias .q_gate_bias .k_bias .v_bias .o_bias
//   layers.N.mlp.gate [I,H]   .up [I,H]   .down [H,I]
//   layers.N.moe.router [E,H]   .gate_up [E,2I,H] (gate rows first)   .down [E,H,I]
//   layers.N.moe.shared.gate  .up  .down   layers.N.moe.shared_gate [1,H]
// Every RMS norm is canonical as a plain weight: zero-centred ones (1 + w) carry Elementwise::plus_one.
#pragma once

#include <string>
#include <vector>

#include "architecture/hybrid_config.h"
#include "base/shape.h"

namespace sluice {

// What happens to each value after the rows are in canonical order.
enum class Elementwise { none, plus_one };

// Rows [first, first + count) of the checkpoint tensor `tensor` (an index into WeightSpec::sources), in units of its
// leading extents: `rank_rows` counts rows of the tensor seen as [product of all but the last extent, last extent].
struct RowRun {
  int source = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// A tensor the checkpoint must hold: one of several names (checkpoints differ in prefixes), and its exact shape.
struct SourceTensor {
  std::string name;  // without the model prefix: "layers.0.linear_attn.A_log"; resolved by the prefixes the checkpoint uses
  Shape shape;
};

// One canonical weight: its rows are the runs, one after the other.
struct WeightSpec {
  std::string name;  // canonical
  Shape shape;
  std::vector<SourceTensor> sources;
  std::vector<RowRun> runs;
  Elementwise elementwise = Elementwise::none;
};

}  // namespace sluice

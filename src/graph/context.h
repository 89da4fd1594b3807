// What the blocks of a decoder share: the plan, the weights, the inputs every layer reads, the states.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "architecture/hybrid_config.h"
#include "graph/builder.h"
#include "graph/decoder.h"
#include "package/manifest.h"
#include "target/plan.h"

namespace sluice {

// Activations travel between blocks as [tokens, hidden]; tokens are batch_size*sequence_length in the dense layout.
// Absent where a layout or plan has no such input.
struct SharedInputs {
  Value input_ids;     // i64: dense [batch_size, sequence_length], packed [num_tokens]
  Value position_ids;  // i64: as the rope block wants it: [batch, tokens], packed with one batch, mrope [3, 1, tokens]
  // Dense: the start of every [batch_size, sequence_length, ..] reshape, [3] i64 with a wildcard; lengths of attention.
  Value batch_shape;
  Value seqlens_k;     // [batch_size] i32, length of each row minus 1
  Value total_length;  // [] i32
  // Packed.
  Value cu_seqlens;           // [batch_size + 1] i32
  Value past_lengths;         // [batch_size] i32
  Value block_table;          // [batch_size, max_num_blocks] i32
  Value attention_metadata;   // [3] i32
  Value logits_indices;       // [num_logits] i32
  Value capture_count;        // [batch_size] i32
  Value state_update_active;  // [1] i32
  // Tables of cos and sin, [max_length, rotary_dim/2] f32.
  Value cos_table;
  Value sin_table;
};

struct LayerStates {  // a layer's inputs; absent for the other kind of layer
  Value key, value;
  Value conv, recurrent;
};

class DecoderContext {
 public:
  DecoderContext(DecoderGraph& decoder, const HybridConfig& model, const ExportPlan& export_plan,
                 const WeightDTypes& dtypes)
      : g(decoder.model.graph), config(model), plan(export_plan), info(decoder.info), source_dtype_(dtypes) {}

  GraphBuilder g;
  const HybridConfig& config;
  const ExportPlan& plan;
  GraphInfo& info;
  SharedInputs in;
  std::vector<LayerStates> states;  // [layers]

  bool dense() const { return plan.layout == Layout::dense; }

  // x [tokens, columns] -> [tokens, rows], with the canonical weight [rows, columns] and, if named, bias [rows].
  Value linear(std::string_view label, Value x, const std::string& weight, std::int64_t rows,
               const std::string& bias = {});
  // A canonical weight in the stored dtype, for operators that take matrices in the dtype they are stored in.
  Value stored_weight(const std::string& canonical, Shape shape, std::vector<Transform> transforms = {});
  // The same, widened or narrowed to the activation dtype in the graph if need be.
  Value matrix(const std::string& canonical, Shape shape, std::vector<Transform> transforms = {});
  // A small canonical weight, stored in the activation dtype, or in f32 where the operator wants that.
  Value vector(const std::string& canonical, Shape shape);
  Value vector_f32(const std::string& canonical, Shape shape, std::vector<Transform> transforms = {});

  // Dense: [tokens, columns] -> [batch_size, sequence_length, columns] and back. In the packed layout both give x.
  Value to_rows(std::string_view label, Value x);
  Value to_tokens(std::string_view label, Value x);

 private:
  Value weight(const std::string& canonical, Shape shape, DType dtype, std::vector<Transform> transforms);

  const WeightDTypes& source_dtype_;
  std::map<std::string, Value> weights_;  // by initializer name
};

// "layers.3.attn.k"
std::string layer_weight(std::int64_t layer, std::string_view name);

}  // namespace sluice

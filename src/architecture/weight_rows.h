// The rows of a weight table that families share; a family's add_layer is made of these.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "architecture/weight_table.h"

namespace sluice {

// Appends the weights of one layer to a table.
class LayerRows {
 public:
  LayerRows(const HybridConfig& config, std::int64_t layer, std::vector<WeightSpec>& table);

  const HybridConfig& config() const { return config_; }
  // A checkpoint tensor of this layer.
  SourceTensor tensor(std::string_view name, Shape shape, std::string_view axes) const;
  // A canonical weight that is one checkpoint tensor as it is.
  void whole(std::string_view canonical, std::string_view name, Shape shape, std::string_view axes,
             Elementwise elementwise = Elementwise::none);
  // A canonical weight in one of several forms.
  void add(std::string_view canonical, Shape shape, std::vector<WeightForm> forms);

 private:
  const HybridConfig& config_;
  std::string prefix_;  // "layers.3."
  std::vector<WeightSpec>& table_;
};

// input_norm; the mixer of a full attention layer, `add_linear` for a linear one; post_norm; MLP or experts.
void add_layer_rows(LayerRows& rows, std::int64_t layer, void (*add_linear)(LayerRows&));

// Linear attention with projections of their own: in_proj_qkv, in_proj_z, in_proj_b, in_proj_a.
void add_split_linear_rows(LayerRows& rows);
// What every family's linear attention has beside its input projections.
void add_linear_tail_rows(LayerRows& rows);

}  // namespace sluice

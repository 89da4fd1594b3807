// Qwen3.5 and 3.6 with experts.
#include <array>

#include "architecture/weight_rows.h"

namespace sluice {
extern const Family family_qwen3_5_moe;
namespace {

constexpr std::array<std::string_view, 2> kTypes{"qwen3_5_moe", "qwen3_5_moe_text"};

void add_layer(const HybridConfig& config, std::int64_t layer, std::vector<WeightSpec>& table) {
  LayerRows rows(config, layer, table);
  add_layer_rows(rows, layer, add_split_linear_rows);
}

}  // namespace

const Family family_qwen3_5_moe{.name = "qwen3_5_moe",
                                .model_types = kTypes,
                                .experts = true,
                                .always_normalizes_top_k = true,
                                .add_layer = add_layer};

}  // namespace sluice

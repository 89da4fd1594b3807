// Qwen3.5, 3.6 and 3.8, dense.
#include <array>

#include "architecture/weight_rows.h"

namespace sluice {
extern const Family family_qwen3_5;
namespace {

constexpr std::array<std::string_view, 2> kTypes{"qwen3_5", "qwen3_5_text"};

void add_layer(const HybridConfig& config, std::int64_t layer, std::vector<WeightSpec>& table) {
  LayerRows rows(config, layer, table);
  add_layer_rows(rows, layer, add_split_linear_rows);
}

}  // namespace

const Family family_qwen3_5{.name = "qwen3_5", .model_types = kTypes, .add_layer = add_layer};

}  // namespace sluice

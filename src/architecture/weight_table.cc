#include "architecture/weight_table.h"

#include <algorithm>

#include "base/error.h"

namespace sluice {
namespace {

WeightSpec whole(std::string_view canonical, std::string_view name, Shape shape, std::string_view axes,
                 Elementwise elementwise) {
  const std::int64_t rows = shape.size() == 2 ? shape[0] : 1;
  return {std::string(canonical), shape, {{{{std::string(name), shape, axes}}, {{0, 0, rows}}}}, elementwise};
}

}  // namespace

std::vector<WeightSpec> weight_table(const HybridConfig& config) {
  const auto all = families();
  const auto family = std::find_if(all.begin(), all.end(), [&](const Family* f) { return f->name == config.family; });
  SLUICE_CHECK(family != all.end());
  std::vector<WeightSpec> table;
  table.push_back(whole("embed_tokens", "embed_tokens.weight", {config.vocab, config.hidden}, "vocab_size, hidden_size",
                        Elementwise::none));
  for (std::int64_t layer = 0; layer < config.layers; ++layer) (*family)->add_layer(config, layer, table);
  table.push_back(whole("norm", "norm.weight", {config.hidden}, "hidden_size", Elementwise::plus_one));
  if (!config.tied) {
    table.push_back(whole("lm_head", "lm_head.weight", {config.vocab, config.hidden}, "vocab_size, hidden_size",
                          Elementwise::none));
  }
  return table;
}

const Family* find_family(std::string_view model_type) {
  for (const Family* family : families()) {
    if (std::find(family->model_types.begin(), family->model_types.end(), model_type) != family->model_types.end())
      return family;
  }
  return nullptr;
}

}  // namespace sluice

// Any text is either a config, whose weight table is consistent, or an Error of one line.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "architecture/read_config.h"
#include "architecture/weight_table.h"
#include "base/error.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check_table(const sluice::HybridConfig& config) {
  for (const sluice::WeightSpec& spec : sluice::weight_table(config)) {
    for (const sluice::WeightForm& form : spec.forms) {
      std::uint64_t rows = 0;
      for (const sluice::RowRun& run : form.runs) {
        const sluice::Shape& shape = form.sources.at(static_cast<std::size_t>(run.source)).shape;
        require(run.first >= 0 && run.count > 0 && shape.back() == spec.shape.back());
        rows += static_cast<std::uint64_t>(run.count);
      }
      const auto elements = sluice::element_count(spec.shape);
      require(!elements || rows == *elements / static_cast<std::uint64_t>(spec.shape.back()));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const sluice::Json json = sluice::parse_json({reinterpret_cast<const char*>(data), size}, "config.json");
    const sluice::HybridConfig config = sluice::config_from_json(json, "config.json");
    require(config.layer_kinds.size() == static_cast<std::size_t>(config.layers));
    require(config.moe_layers.size() == config.layer_kinds.size());
    require(config.rope.rotary_dim() >= 2 && config.rope.rotary_dim() <= config.head_dim);
    for (const double inverse : config.rope.inverse_frequency) require(std::isfinite(inverse));
    require(std::isfinite(config.rope.attention_factor));
    // Larger tables only cost time.
    if (config.layers * (config.moe ? config.moe->experts : 1) <= 512) check_table(config);
  } catch (const sluice::Error& error) {
    require(std::strchr(error.what(), '\n') == nullptr && std::strlen(error.what()) < 4096);
  }
  return 0;
}

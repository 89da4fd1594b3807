// Rotary embedding of a config: its keys in every spelling, and the frequencies derived from them.
#pragma once

#include <string>
#include <vector>

#include "architecture/config_keys.h"
#include "architecture/hybrid_config.h"

namespace sluice {

// Reads rope_parameters, rope_scaling and the keys flattened beside them, in that order of precedence; two places that
// contradict each other are an error. Derives inverse_frequency and attention_factor in double, as transformers 5.24
// defines default, linear and yarn scaling (YaRN: arXiv 2309.00071, section 3); other types are refused by name.
RopeConfig read_rope(ConfigKeys& text, std::int64_t head_dim, std::int64_t max_positions,
                     std::vector<std::string>& notices);

}  // namespace sluice

// What travels with the weights: tokenizer, chat template, generation defaults, licence; and the ids they define.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "architecture/hybrid_config.h"
#include "base/json.h"
#include "package/genai_config.h"

namespace sluice {

struct SideFiles {
  std::vector<std::string> names;     // present in the checkpoint and carried over, in a fixed order
  std::vector<std::int64_t> eos_ids;  // union: tokenizer, generation_config, config.json, in that order, each once
  std::optional<std::int64_t> bos_id, pad_id;
  MarkerIds markers;
  SearchDefaults search;
  std::vector<std::string> notices;
};

// Reads tokenizer_config.json, tokenizer.json and generation_config.json where present. Throws Error naming file and
// key for what cannot be understood, and for an id outside the vocabulary.
SideFiles read_side_files(const std::filesystem::path& checkpoint, const HybridConfig& config);

}  // namespace sluice

// genai_config.json as onnxruntime-genai 0.18 reads it. Its parser is strict: a key it does not know is a load error,
// so this struct holds exactly what it knows and nothing of ours (that is sluice.json's).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "package/manifest.h"

namespace sluice {

// What generation_config.json may override; genai's own defaults otherwise.
struct SearchDefaults {
  bool do_sample = false;
  double temperature = 1.0;
  std::int64_t top_k = 50;
  double top_p = 1.0;
  double repetition_penalty = 1.0;
};

// Ids of <tool_call>, </tool_call>, <think>, </think> where the tokenizer has them.
struct MarkerIds {
  std::optional<std::int64_t> begin_tool, end_tool, begin_reasoning, end_reasoning;
};

struct GenaiConfig {
  Manifest manifest;  // layout, sizes, names of ports and states, capacity, blocks
  SearchDefaults search;
  MarkerIds markers;
  std::string custom_ops_library;  // bare file name in the package; empty: none
};

// The whole document. Key order follows the contract, so that equal inputs give equal bytes.
Json genai_config_json(const GenaiConfig& config);

// The `model.type` that makes genai load a text decoder of this family.
std::string genai_model_type(const std::string& family);

}  // namespace sluice

// config.json -> HybridConfig: every key that changes the maths is honoured, or refused by name.
#pragma once

#include <filesystem>
#include <string_view>

#include "architecture/hybrid_config.h"
#include "base/json.h"

namespace sluice {

// Reads `directory`/config.json. Throws Error naming file, key, value and what is accepted; what a user should know but
// can live with is in HybridConfig::notices.
HybridConfig read_config(const std::filesystem::path& directory);

// The same from parsed JSON; `source` names it in errors.
HybridConfig config_from_json(const Json& json, std::string_view source);

}  // namespace sluice

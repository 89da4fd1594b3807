// Whether the bytes are what they should be: a package against its manifest, a checkpoint's values against sense.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/json.h"
#include "base/progress.h"

namespace sluice {

struct CheckReport {
  std::uint64_t files = 0;            // looked at
  std::uint64_t bytes = 0;            // read
  std::vector<std::string> problems;  // one line each: a hash or size that differs, a file that is absent, a NaN, ...
  std::vector<std::string> remarks;   // worth knowing: files the manifest does not name, norms that look shifted, ...
  bool good() const { return problems.empty(); }
};

// Package: every file the manifest names is there, has its size and XXH3; every weight lies inside its file.
// Checkpoint: everything open_model checks, and no NaN or Inf in any weight. Reads every byte once.
CheckReport check(const std::filesystem::path& path, Executor& executor, Progress& progress);

Json to_json(const CheckReport& report);
std::string to_text(const CheckReport& report);

}  // namespace sluice

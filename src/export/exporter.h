// A checkpoint -> a package: plan, graph, bytes, in one streaming pass.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "kernels/cpu/convert.h"
#include "package/manifest.h"
#include "target/plan.h"

namespace sluice {

struct ExportRequest {
  std::filesystem::path checkpoint;  // folder, or one .safetensors file with config.json beside it
  std::filesystem::path output;      // folder to be
  ExportOptions options;
  // The operator library to ship, for target sluice; it takes the name libsluice_ops.so in the package.
  std::filesystem::path operator_library;
  bool force = false;
  bool sync = true;
  // Hard-links the shards into the package instead of copying the weights that are stored as they are. Python's onnx
  // refuses such a package, and editing the checkpoint in place would change it.
  bool link = false;
  int threads = 0;     // 0: one a hardware thread
  Json options_given;  // recorded in the manifest as it is
};

// A weight that its stored dtype could not hold exactly in range.
struct WeightLoss {
  std::string canonical;
  ConvertCounts counts;
};

struct ExportReport {
  Manifest manifest;  // of what was, or would be, written
  std::uint64_t total_bytes = 0;
  std::vector<WeightLoss> losses;  // empty on a dry run
  double seconds = 0;              // wall
};

// What an export would write, from headers alone: sizes exact, hashes empty, nothing written. Same errors as the export
// itself has before it starts, but for free space, which run() asks for first: checkpoint, config, combination, target
// folder.
class ExportJob {
 public:
  explicit ExportJob(ExportRequest request);
  ~ExportJob();
  ExportJob(const ExportJob&) = delete;
  ExportJob& operator=(const ExportJob&) = delete;

  const ExportReport& planned() const noexcept;
  // Writes the package. Throws Error, leaving the target untouched and nothing beside it, for anything that goes wrong.
  ExportReport run(Progress& progress);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice

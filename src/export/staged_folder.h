// A folder written beside its final place and renamed into it when whole: what stands at the target is complete or
// absent.
#pragma once

#include <filesystem>
#include <string>

namespace sluice {

struct StageOptions {
  bool force = false;  // replace a package that stands at the target
  bool sync = true;    // fsync files and folders before and after the rename
};

// Holds `.<name>.sluice-partial` beside the target, locked, until commit() or destruction. Throws Error for: a target
// that exists and may not be replaced (only a Sluice package or an empty folder may), a folder that cannot be made, and
// another export that is writing to the same target. The remains of a killed export are removed first.
class StagedFolder {
 public:
  StagedFolder(std::filesystem::path target, StageOptions options);
  ~StagedFolder();  // removes the stage unless committed
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  const std::filesystem::path& path() const noexcept { return stage_; }
  // True when an interrupted export had left its stage behind.
  bool found_remains() const noexcept { return found_remains_; }
  // Makes the stage the target, in one rename. The target is untouched when this throws.
  void commit();

 private:
  void lock();
  void sync_contents() const;

  std::filesystem::path target_;
  std::filesystem::path stage_;
  StageOptions options_;
  int descriptor_ = -1;
  bool found_remains_ = false;
  bool committed_ = false;
};

// Throws Error unless the target may be written with these options; writes nothing.
void check_target(const std::filesystem::path& target, bool force);

// Throws Error when the file system of `target` has less than `bytes` free, or cannot be asked.
void check_free_space(const std::filesystem::path& target, std::uint64_t bytes);

}  // namespace sluice

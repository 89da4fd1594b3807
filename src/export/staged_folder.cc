#include "export/staged_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "package/manifest.h"

namespace sluice {
namespace fs = std::filesystem;
namespace {

// A target that is a link names the folder behind it: the package belongs there, and its stage beside it.
fs::path absolute_target(const fs::path& target) {
  if (target.empty()) fail("the output is an empty path; expected a folder to write");
  fs::path out = fs::absolute(target).lexically_normal();
  if (out.filename().empty()) out = out.parent_path();  // "out/" names the folder "out"
  std::error_code error;
  if (!fs::is_symlink(fs::symlink_status(out, error))) return out;
  fs::path behind = fs::canonical(out, error);
  if (error) fail("{}: a symlink that leads nowhere; remove it or choose another output", target.string());
  return behind;
}

void sync_path(const fs::path& path, int flags) {
  const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC);
  if (descriptor < 0) fail("{}: cannot be opened to sync it: {}", path.string(), std::strerror(errno));
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  if (result != 0) fail("{}: cannot be synced to disk: {}", path.string(), std::strerror(error));
}

bool same_file(int descriptor, const fs::path& path) {
  struct stat open_file{}, named{};
  return ::fstat(descriptor, &open_file) == 0 && ::stat(path.c_str(), &named) == 0 &&
         open_file.st_ino == named.st_ino && open_file.st_dev == named.st_dev;
}

}  // namespace

void check_target(const fs::path& target, bool force) {
  std::error_code error;
  const fs::file_status status = fs::status(absolute_target(target), error);
  if (!fs::exists(status)) return;
  if (!fs::is_directory(status)) fail("{}: exists and is no folder; choose another output", target.string());
  if (fs::is_empty(target, error) && !error) return;
  if (!fs::exists(target / kManifestFile)) {
    fail("{}: exists, is not empty and is no Sluice package (no {}), so it is never replaced; choose another output",
         target.string(), kManifestFile);
  }
  if (!force) fail("{}: holds a package already; --force replaces it", target.string());
}

void check_free_space(const fs::path& target, std::uint64_t bytes) {
  fs::path existing = absolute_target(target).parent_path();
  while (!fs::exists(existing) && existing.has_relative_path()) existing = existing.parent_path();
  struct statvfs status{};
  if (::statvfs(existing.c_str(), &status) != 0)
    fail("{}: free space cannot be asked: {}", existing.string(), std::strerror(errno));
  const std::uint64_t free = static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
  if (free < bytes) {
    fail("{}: not enough free space: {} bytes are needed, {} are free; free {} bytes or choose another disk",
         existing.string(), bytes, free, bytes - free);
  }
}

StagedFolder::StagedFolder(fs::path target, StageOptions options)
    : target_(absolute_target(target)), options_(options) {
  check_target(target_, options_.force);
  stage_ = target_.parent_path() / ("." + target_.filename().string() + ".sluice-partial");
  std::error_code error;
  fs::create_directories(target_.parent_path(), error);
  if (error) fail("{}: cannot be made: {}", target_.parent_path().string(), error.message());
  lock();
  for (const auto& entry : fs::directory_iterator(stage_)) {
    found_remains_ = true;
    fs::remove_all(entry.path(), error);
    if (error)
      fail("{}: remains of an interrupted export cannot be removed: {}", entry.path().string(), error.message());
  }
}

// The lock is on the folder itself, so it vanishes with the process. A folder that was renamed or removed between our
// open and our lock was another export's: look again.
void StagedFolder::lock() {
  for (int attempt = 0; attempt < 10; ++attempt) {
    if (::mkdir(stage_.c_str(), 0777) != 0 && errno != EEXIST)
      fail("{}: cannot be made: {}", stage_.string(), std::strerror(errno));
    descriptor_ = ::open(stage_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor_ < 0 && errno == ENOENT) continue;
    if (descriptor_ < 0) fail("{}: cannot be opened: {}", stage_.string(), std::strerror(errno));
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      ::close(descriptor_);
      descriptor_ = -1;
      fail("{}: another export is writing this package now; wait for it or choose another output", target_.string());
    }
    if (same_file(descriptor_, stage_)) return;
    ::close(descriptor_);
    descriptor_ = -1;
  }
  fail("{}: cannot be locked; other exports keep taking it", stage_.string());
}

StagedFolder::~StagedFolder() {
  if (!committed_ && descriptor_ >= 0) {
    std::error_code ignored;
    fs::remove_all(stage_, ignored);
  }
  if (descriptor_ >= 0) ::close(descriptor_);
}

void StagedFolder::sync_contents() const {
  for (const auto& entry : fs::recursive_directory_iterator(stage_)) {
    sync_path(entry.path(), entry.is_directory() ? O_RDONLY | O_DIRECTORY : O_RDONLY);
  }
  sync_path(stage_, O_RDONLY | O_DIRECTORY);
}

void StagedFolder::commit() {
  if (options_.sync) sync_contents();
  check_target(target_, options_.force);  // somebody may have written there meanwhile
  std::error_code error;
  const bool replaces = fs::exists(target_, error) && !fs::is_empty(target_, error);
  if (replaces) {
    if (::renameat2(AT_FDCWD, stage_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) != 0) {
      fail("{}: cannot be replaced: {}", target_.string(), std::strerror(errno));
    }
  } else if (::rename(stage_.c_str(), target_.c_str()) != 0) {
    fail("{}: cannot be renamed to {}: {}", stage_.string(), target_.string(), std::strerror(errno));
  }
  committed_ = true;
  if (options_.sync) sync_path(target_.parent_path(), O_RDONLY | O_DIRECTORY);
  if (replaces) fs::remove_all(stage_, error);  // the old package, under the stage's name now
}

}  // namespace sluice

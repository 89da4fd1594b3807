#include "inspect/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "inspect/report.h"
#include "package/manifest.h"
#include "weights/value_scan.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPieceBytes = 16u << 20;

class PackageCheck {
 public:
  PackageCheck(const fs::path& package, Progress& progress)
      : package_(package), manifest_(read_manifest(package)), progress_(progress) {}

  CheckReport run() {
    for (const FileInfo& file : manifest_.files) total_ += file.bytes;
    for (const FileInfo& file : manifest_.files) check_file(file);
    for (const WeightInfo& weight : manifest_.weights_index) check_weight(weight);
    find_strangers();
    return std::move(report_);
  }

 private:
  void check_file(const FileInfo& file) {
    std::error_code error;
    const std::uint64_t bytes = fs::file_size(package_ / file.path, error);
    ++report_.files;
    if (error) {
      report_.problems.push_back(fmt::format("{}: {}", file.path, error.message()));
    } else if (!fs::is_regular_file(package_ / file.path)) {
      report_.problems.push_back(fmt::format("{}: expected a file, found something else", file.path));
    } else if (bytes != file.bytes) {
      report_.problems.push_back(fmt::format("{}: {} bytes, but the manifest says {}", file.path, bytes, file.bytes));
    } else if (const std::string hash = hash_of(package_ / file.path); hash != file.xxh3) {
      report_.problems.push_back(fmt::format(
          "{}: XXH3 {}, but the manifest says {}: its bytes changed after the export", file.path, hash, file.xxh3));
    }
  }

  std::string hash_of(const fs::path& path) {
    const MappedFile file(path);
    Xxh3 hash;
    for (std::size_t at = 0; at < file.bytes().size(); at += kPieceBytes) {
      if (progress_.cancelled()) fail("{}: interrupted while checking", path.string());
      const auto piece = file.bytes().subspan(at, std::min(kPieceBytes, file.bytes().size() - at));
      hash.update(piece);
      file.release(piece);
      report_.bytes += piece.size();
      progress_.advance(report_.bytes, total_);
    }
    return hash.hex();
  }

  void check_weight(const WeightInfo& weight) {
    const auto file = std::find_if(manifest_.files.begin(), manifest_.files.end(),
                                   [&](const FileInfo& f) { return f.path == weight.file; });
    if (file == manifest_.files.end()) {
      report_.problems.push_back(fmt::format("{}: weight {} lies in {}, which the manifest does not list",
                                             kManifestFile, weight.initializer, weight.file));
    } else if (weight.offset > file->bytes || weight.bytes > file->bytes - weight.offset) {
      report_.problems.push_back(fmt::format("{}: weight {} takes bytes {} to {} of {}, which has {}", kManifestFile,
                                             weight.initializer, weight.offset, weight.offset + weight.bytes,
                                             weight.file, file->bytes));
    } else if (const auto bytes = byte_count(weight.shape, weight.dtype); bytes != weight.bytes) {
      report_.problems.push_back(fmt::format("{}: weight {} has {} bytes, but {} of {} takes {}", kManifestFile,
                                             weight.initializer, weight.bytes, to_string(weight.shape),
                                             dtype_name(weight.dtype), bytes.value_or(0)));
    }
  }

  void find_strangers() {
    std::set<fs::path> known{kManifestFile};
    for (const FileInfo& file : manifest_.files) known.insert(fs::path(file.path).lexically_normal());
    for (const auto& item : fs::recursive_directory_iterator(package_)) {
      if (item.is_directory()) continue;
      const fs::path relative = item.path().lexically_relative(package_);
      if (known.count(relative) == 0)
        report_.remarks.push_back(fmt::format("{}: not named by the manifest", relative.string()));
    }
  }

  const fs::path& package_;
  Manifest manifest_;
  Progress& progress_;
  CheckReport report_;
  std::uint64_t total_ = 0;  // bytes
};

CheckReport check_checkpoint(const fs::path& path, Executor& executor, Progress& progress) {
  const ModelSource model = open_model(path);
  CheckReport report;
  report.files = model.checkpoint.files().size();
  for (const CanonicalWeight& weight : model.weights.weights()) {
    for (const WeightPiece& piece : weight.pieces) report.bytes += piece.bytes.size();
  }
  for (const ValueFinding& finding : scan_values(model, ScanScope::everything, executor, progress)) {
    (finding.kind == FindingKind::not_finite ? report.problems : report.remarks).push_back(finding.message);
  }
  return report;
}

}  // namespace

CheckReport check(const fs::path& path, Executor& executor, Progress& progress) {
  std::error_code ignored;
  if (fs::exists(path / kManifestFile, ignored)) return PackageCheck(path, progress).run();
  return check_checkpoint(path, executor, progress);
}

Json to_json(const CheckReport& report) {
  Json out;
  out.set("good", report.good()).set("files", report.files).set("bytes", report.bytes);
  out.set("problems", Json::array(report.problems)).set("remarks", Json::array(report.remarks));
  return out;
}

std::string to_text(const CheckReport& report) {
  std::string out;
  for (const std::string& problem : report.problems) out += fmt::format("  WRONG: {}\n", problem);
  for (const std::string& remark : report.remarks) out += fmt::format("  remark: {}\n", remark);
  out += fmt::format(
      "  checked {} file{}, {}: {}\n", report.files, report.files == 1 ? "" : "s", bytes_in_words(report.bytes),
      report.good() ? "good"
                    : fmt::format("{} problem{}", report.problems.size(), report.problems.size() == 1 ? "" : "s"));
  return out;
}

}  // namespace sluice

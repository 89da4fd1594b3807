#include "export/exporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>

#include "base/error.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "export/file_writer.h"
#include "onnx/serialize.h"
#include "tests/support/message_of.h"
#include "weights/weight_source.h"

namespace sluice {
namespace fs = std::filesystem;
namespace {

using sluice::testing::message_of;

using ::testing::HasSubstr;

const fs::path kGoldens = fs::path(SLUICE_SOURCE_DIR) / "tests/data/goldens";

struct Recorder final : Progress {
  void notice(const std::string& text) override { notices += text + "\n"; }
  bool cancelled() const override { return cancel; }
  std::string notices;
  bool cancel = false;
};

class ExporterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "sluice-export-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
  }
  void TearDown() override { fs::remove_all(root_); }

  ExportRequest request(const std::string& golden, const std::string& output = "out") const {
    ExportRequest r;
    r.checkpoint = kGoldens / golden;
    r.output = root_ / output;
    r.sync = false;
    r.threads = 2;
    return r;
  }
  std::map<std::string, std::string> contents(const std::string& output) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(root_ / output)) {
      std::ifstream in(entry.path(), std::ios::binary);
      files[entry.path().filename()] = {std::istreambuf_iterator<char>(in), {}};
    }
    return files;
  }

  fs::path root_;
  Recorder progress_;
};

TEST_F(ExporterTest, TheDryRunTellsTheExactBytesAndWritesNothing) {
  ExportJob job(request("dense35-base"));
  EXPECT_TRUE(fs::is_empty(root_));
  const ExportReport report = job.run(progress_);
  EXPECT_EQ(report.total_bytes, job.planned().total_bytes);
  ASSERT_EQ(report.manifest.files.size(), job.planned().manifest.files.size());
  for (std::size_t i = 0; i < report.manifest.files.size(); ++i) {
    EXPECT_EQ(report.manifest.files[i].bytes, job.planned().manifest.files[i].bytes) << report.manifest.files[i].path;
    EXPECT_EQ(report.manifest.files[i].path, job.planned().manifest.files[i].path);
  }
}

TEST_F(ExporterTest, TheSameInputGivesTheSameBytes) {
  for (const char* golden : {"dense35-base", "moe35-vl"}) {
    ExportRequest one = request(golden, std::string("one-") + golden),
                  two = request(golden, std::string("two-") + golden);
    two.threads = 1;
    ExportJob(one).run(progress_);
    ExportJob(two).run(progress_);
    EXPECT_EQ(contents(std::string("one-") + golden), contents(std::string("two-") + golden));
  }
}

TEST_F(ExporterTest, EveryWrittenFileHasItsHashInTheManifest) {
  ExportJob(request("dense35-sharded")).run(progress_);
  const Manifest m = read_manifest(root_ / "out");
  std::set<std::string> listed{kManifestFile};
  for (const FileInfo& file : m.files) {
    const MappedFile written(root_ / "out" / file.path);
    Xxh3 hash;
    hash.update(written.bytes());
    EXPECT_EQ(hash.hex(), file.xxh3) << file.path;
    EXPECT_EQ(written.bytes().size(), file.bytes) << file.path;
    listed.insert(file.path);
  }
  for (const auto& [name, bytes] : contents("out")) EXPECT_TRUE(listed.contains(name)) << name;
  EXPECT_EQ(m.sources.size(), 2u + 4u);  // config.json, the index, four shards
}

// Every initializer's bytes in the data file are the canonical weight, widened exactly: fp32 loses nothing.
TEST_F(ExporterTest, TheDataFileHoldsTheCanonicalWeights) {
  for (const char* golden : {"dense35-asym", "next-base", "moe35-base", "dense35-fp16"}) {
    ExportJob(request(golden, golden)).run(progress_);
    const Manifest m = read_manifest(root_ / golden);
    const MappedFile data(root_ / golden / "model.onnx.data");
    const ModelSource model = open_model(kGoldens / golden);
    int compared = 0;
    for (const WeightInfo& weight : m.weights_index) {
      if (weight.canonical.empty() || weight.canonical.find(' ') != std::string::npos || !weight.transform.empty())
        continue;
      ASSERT_EQ(weight.dtype, DType::f32);
      const std::vector<float> expected = read_all<float>(model.weights.at(weight.canonical));
      ASSERT_EQ(weight.bytes, expected.size() * sizeof(float)) << weight.canonical;
      ASSERT_LE(weight.offset + weight.bytes, data.bytes().size());
      EXPECT_EQ(std::memcmp(data.bytes().data() + weight.offset, expected.data(), weight.bytes), 0) << weight.canonical;
      ++compared;
    }
    EXPECT_GT(compared, 20) << golden;
  }
}

TEST_F(ExporterTest, LinkedWeightsLieInTheShardItself) {
  fs::copy(kGoldens / "dense35-tied", root_ / "checkpoint");  // fp32 as stored
  ExportRequest r = request("dense35-tied");
  r.checkpoint = root_ / "checkpoint";
  r.link = true;
  ExportJob job(r);
  const ExportReport report = job.run(progress_);
  EXPECT_EQ(report.total_bytes, job.planned().total_bytes);
  EXPECT_EQ(fs::hard_link_count(root_ / "out" / "model.safetensors"), 2u);
  const ModelSource model = open_model(r.checkpoint);
  const MappedFile shard(root_ / "out" / "model.safetensors");
  int linked = 0;
  for (const WeightInfo& weight : report.manifest.weights_index) {
    if (weight.file != "model.safetensors") continue;
    const auto expected = read_all<float>(model.weights.at(weight.canonical));
    EXPECT_EQ(std::memcmp(shard.bytes().data() + weight.offset, expected.data(), weight.bytes), 0) << weight.canonical;
    ++linked;
  }
  EXPECT_GT(linked, 10);
}

TEST_F(ExporterTest, ABrokenCheckpointStopsBeforeAnythingIsWritten) {
  for (const auto& folder : fs::directory_iterator(kGoldens / "malformed")) {
    if (!folder.is_directory() || folder.path().filename() == "ok") continue;
    ExportRequest r = request("malformed/" + folder.path().filename().string());
    try {
      ExportJob job(r);
      job.run(progress_);
      fs::remove_all(r.output);  // kinds that are reported, not refused
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << folder.path();
    }
    EXPECT_TRUE(fs::is_empty(root_)) << folder.path();
  }
}

TEST_F(ExporterTest, AnInfiniteWeightIsReportedByNameAndElement) {
  ExportJob(request("malformed/inf-weight")).run(progress_);
  EXPECT_THAT(progress_.notices, HasSubstr("norm"));
  EXPECT_THAT(progress_.notices, HasSubstr("element"));
}

TEST_F(ExporterTest, CancellingLeavesNothing) {
  progress_.cancel = true;
  EXPECT_THAT(message_of([&] { ExportJob(request("dense35-base")).run(progress_); }), HasSubstr("interrupted"));
  EXPECT_TRUE(fs::is_empty(root_));
}

TEST_F(ExporterTest, AShardThatShrinksMeanwhileIsAnErrorNotASignal) {
  fs::copy(kGoldens / "dense35-base", root_ / "checkpoint");
  ExportRequest r = request("dense35-base");
  r.checkpoint = root_ / "checkpoint";
  ExportJob job(r);
  const fs::path shard = root_ / "checkpoint" / "model.safetensors";
  fs::resize_file(shard, fs::file_size(shard) / 2);
  const std::string message = message_of([&] { job.run(progress_); });
  EXPECT_THAT(message, HasSubstr("model.safetensors"));
  EXPECT_THAT(message, HasSubstr("changed while being exported"));
  EXPECT_FALSE(fs::exists(r.output));
}

TEST_F(ExporterTest, AShardThatIsRewrittenMeanwhileIsAnError) {
  fs::copy(kGoldens / "dense35-base", root_ / "checkpoint");
  ExportRequest r = request("dense35-base");
  r.checkpoint = root_ / "checkpoint";
  ExportJob job(r);
  {
    std::fstream file(root_ / "checkpoint" / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-8, std::ios::end);
    file.write("\0\0\0\0\0\0\0\0", 8);
  }
  EXPECT_THAT(message_of([&] { job.run(progress_); }), HasSubstr("changed while being exported"));
  EXPECT_FALSE(fs::exists(r.output));
}

TEST_F(ExporterTest, AShardThatVanishesMeanwhileDoesNoHarm) {
  fs::copy(kGoldens / "dense35-base", root_ / "checkpoint");
  ExportRequest r = request("dense35-base");
  r.checkpoint = root_ / "checkpoint";
  ExportJob job(r);
  fs::remove(root_ / "checkpoint" / "model.safetensors");  // still open: the bytes are there until it is closed
  job.run(progress_);
  ExportJob(request("dense35-base", "other")).run(progress_);
  EXPECT_EQ(contents("out").at("model.onnx.data"), contents("other").at("model.onnx.data"));
}

// Runs `body` in a child with a mount namespace of its own, so that a mount it makes is gone with it.
int in_private_mounts(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    const bool isolated =
        ::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    ::_exit(isolated ? body() : 77);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

// Takes all the room there is as soon as the export has begun to write.
struct Hog final : Progress {
  explicit Hog(fs::path file) : filler(file) {}
  void advance(std::uint64_t, std::uint64_t) override {
    const std::string block(1 << 16, 'x');
    while (filler.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
    }
  }
  std::ofstream filler;
};

TEST_F(ExporterTest, AFullDiskLeavesNothingThatLooksWhole) {
  const int result = in_private_mounts([&] {
    const fs::path disk = root_ / "disk";
    fs::create_directories(disk);
    if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=64m") != 0) return 77;
    ExportRequest r = request("dense35-base");
    r.output = disk / "out";
    Hog hog(disk / "filler");
    const std::string message = message_of([&] { ExportJob(r).run(hog); });
    const bool only_filler = std::distance(fs::directory_iterator(disk), {}) == 1;
    return message.find("No space left") != std::string::npos && only_filler ? 0 : 1;
  });
  if (result == 77) GTEST_SKIP() << "no right to mount a small disk here (needs root)";
  EXPECT_EQ(result, 0);
}

TEST_F(ExporterTest, MissingSpaceIsToldBeforeWritingAndTheDryRunStillTellsThePlan) {
  const int result = in_private_mounts([&] {
    const fs::path disk = root_ / "disk";
    fs::create_directories(disk);
    if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1m") != 0) return 77;
    ExportRequest r = request("dense35-base");
    r.output = disk / "out";
    ExportJob job(r);
    if (job.planned().total_bytes == 0) return 1;
    const std::string message = message_of([&] { job.run(progress_); });
    return message.find("not enough free space") != std::string::npos && fs::is_empty(disk) ? 0 : 2;
  });
  if (result == 77) GTEST_SKIP() << "no right to mount a small disk here (needs root)";
  EXPECT_EQ(result, 0);
}

TEST_F(ExporterTest, BlocksAreSharedWhereTheFileSystemCan) {
  const int result = in_private_mounts([&] {
    const fs::path image = root_ / "image", disk = root_ / "disk";
    fs::create_directories(disk);
    std::ofstream(image).close();
    fs::resize_file(image, 400ull << 20);
    const std::string make =
        "mkfs.xfs -q " + image.string() + " 2>/dev/null && mount -o loop " + image.string() + " " + disk.string();
    if (std::system(make.c_str()) != 0) return 77;
    std::vector<std::byte> bytes(8 << 20);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 2654435761u >> 13);
    FileWriter source_writer(disk / "source", true);
    source_writer.append(bytes);
    const FileInfo source = source_writer.finish();
    const MappedFile mapped(disk / "source");
    FileWriter writer(disk / "clone", true);
    writer.append(std::span(bytes).first(4096));
    if (!writer.clone(mapped.descriptor(), 4096, bytes.size() - 8192)) return 1;
    writer.account(std::span(bytes).subspan(4096, bytes.size() - 8192));
    writer.append(std::span(bytes).last(4096));
    const FileInfo clone = writer.finish();
    const MappedFile written(disk / "clone");
    const bool same =
        written.bytes().size() == bytes.size() && std::memcmp(written.bytes().data(), bytes.data(), bytes.size()) == 0;
    return same && clone.xxh3 == source.xxh3 && clone.bytes == source.bytes ? 0 : 2;
  });
  if (result == 77) GTEST_SKIP() << "no right, or no mkfs.xfs, to make a file system that shares blocks";
  EXPECT_EQ(result, 0);
}

TEST_F(ExporterTest, AReadOnlyTargetIsNamed) {
  const int result = in_private_mounts([&] {
    const fs::path disk = root_ / "disk";
    fs::create_directories(disk);
    if (::mount("tmpfs", disk.c_str(), "tmpfs", MS_RDONLY, "size=64m") != 0) return 77;
    ExportRequest r = request("dense35-base");
    r.output = disk / "out";
    const std::string message = message_of([&] { ExportJob(r).run(progress_); });
    return message.find("Read-only file system") != std::string::npos &&
                   message.find(disk.string()) != std::string::npos
               ? 0
               : 1;
  });
  if (result == 77) GTEST_SKIP() << "no right to mount a read-only disk here (needs root)";
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace sluice

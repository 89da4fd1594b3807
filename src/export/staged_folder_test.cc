#include "export/staged_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include "base/error.h"
#include "export/file_writer.h"
#include "tests/support/message_of.h"

namespace sluice {
namespace fs = std::filesystem;
namespace {

using sluice::testing::message_of;

using ::testing::HasSubstr;

class StagedFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "sluice-stage-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
  }
  void TearDown() override { fs::remove_all(root_); }

  static void put(const fs::path& file, const std::string& text) { std::ofstream(file) << text; }
  static std::string get(const fs::path& file) {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::size_t entries() const { return static_cast<std::size_t>(std::distance(fs::directory_iterator(root_), {})); }

  fs::path root_;
};

TEST_F(StagedFolderTest, NothingStandsAtTheTargetUntilCommit) {
  StagedFolder stage(root_ / "out", {});
  put(stage.path() / "a", "1");
  EXPECT_FALSE(fs::exists(root_ / "out"));
  stage.commit();
  EXPECT_EQ(get(root_ / "out" / "a"), "1");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(StagedFolderTest, AnAbandonedStageVanishes) {
  {
    StagedFolder stage(root_ / "out", {});
    put(stage.path() / "a", "1");
  }
  EXPECT_EQ(entries(), 0u);
}

TEST_F(StagedFolderTest, TheRemainsOfAKilledRunAreRemoved) {
  fs::create_directories(root_ / ".out.sluice-partial" / "sub");
  put(root_ / ".out.sluice-partial" / "model.onnx.data", "half");
  StagedFolder stage(root_ / "out", {});
  EXPECT_TRUE(stage.found_remains());
  EXPECT_TRUE(fs::is_empty(stage.path()));
}

TEST_F(StagedFolderTest, TwoWritersOfOneTargetNeverMix) {
  StagedFolder first(root_ / "out", {});
  EXPECT_THAT(message_of([&] { StagedFolder second(root_ / "out", {}); }), HasSubstr("another export is writing"));
  first.commit();
  EXPECT_TRUE(fs::exists(root_ / "out"));
}

TEST_F(StagedFolderTest, OnlyPackagesAndEmptyFoldersAreReplaced) {
  fs::create_directories(root_ / "empty");
  EXPECT_NO_THROW(check_target(root_ / "empty", false));
  fs::create_directories(root_ / "other");
  put(root_ / "other" / "thesis.tex", "dear");
  EXPECT_THAT(message_of([&] { check_target(root_ / "other", true); }), HasSubstr("never replaced"));
  put(root_ / "file", "x");
  EXPECT_THAT(message_of([&] { check_target(root_ / "file", true); }), HasSubstr("is no folder"));
  fs::create_directories(root_ / "package");
  put(root_ / "package" / "sluice.json", "{}");
  EXPECT_THAT(message_of([&] { check_target(root_ / "package", false); }), HasSubstr("--force"));
  EXPECT_NO_THROW(check_target(root_ / "package", true));
}

TEST_F(StagedFolderTest, ForceReplacesThePackageWholly) {
  fs::create_directories(root_ / "out");
  put(root_ / "out" / "sluice.json", "{}");
  put(root_ / "out" / "old", "old");
  StagedFolder stage(root_ / "out/", {true, true});  // a trailing slash names the same folder
  put(stage.path() / "new", "new");
  EXPECT_EQ(get(root_ / "out" / "old"), "old");
  stage.commit();
  EXPECT_EQ(get(root_ / "out" / "new"), "new");
  EXPECT_FALSE(fs::exists(root_ / "out" / "old"));
  EXPECT_EQ(entries(), 1u);
}

TEST_F(StagedFolderTest, ATargetThatAppearedMeanwhileIsKept) {
  StagedFolder stage(root_ / "out", {});
  fs::create_directories(root_ / "out");
  put(root_ / "out" / "mine", "1");
  EXPECT_THROW(stage.commit(), Error);
  EXPECT_EQ(get(root_ / "out" / "mine"), "1");
}

TEST_F(StagedFolderTest, MissingSpaceIsToldInBytes) {
  EXPECT_THAT(message_of([&] { check_free_space(root_ / "a" / "b", 1ull << 60); }),
              HasSubstr("1152921504606846976 bytes are needed"));
  EXPECT_NO_THROW(check_free_space(root_ / "a" / "b", 1));
}

TEST_F(StagedFolderTest, AWriterHashesWhatItWrites) {
  std::vector<std::byte> bytes(FileWriter::kBufferBytes * 6 + 17);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 >> 3);
  Xxh3 hash;
  hash.update(bytes);
  FileWriter writer(root_ / "data", true);
  writer.append(bytes);
  EXPECT_EQ(writer.offset(), bytes.size());
  const FileInfo info = writer.finish();
  EXPECT_EQ(info.bytes, bytes.size());
  EXPECT_EQ(info.xxh3, hash.hex());
  EXPECT_EQ(info.path, "data");
  const std::string read = get(root_ / "data");
  ASSERT_EQ(read.size(), bytes.size());
  EXPECT_EQ(std::memcmp(read.data(), bytes.data(), bytes.size()), 0);
  EXPECT_THAT(message_of([&] { FileWriter again(root_ / "data", true); }), HasSubstr("cannot be made"));
}

TEST_F(StagedFolderTest, ALinkStandsForTheFolderBehindIt) {
  fs::create_directories(root_ / "disk" / "real");
  fs::create_symlink(root_ / "disk" / "real", root_ / "out");
  for (const char* text : {"1", "2"}) {  // written, then replaced
    StagedFolder stage(root_ / "out", {.force = true});
    put(stage.path() / "a", text);
    put(stage.path() / "sluice.json", "{}");
    stage.commit();
    EXPECT_TRUE(fs::is_symlink(root_ / "out"));
    EXPECT_EQ(get(root_ / "disk" / "real" / "a"), text);
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(root_ / "disk"), {}), 1);
}

TEST_F(StagedFolderTest, ATargetThatLeadsNowhereIsRefusedBeforeAnythingIsWritten) {
  fs::create_symlink(root_ / "gone", root_ / "out");
  fs::create_symlink(root_ / "loop", root_ / "loop");
  for (const char* name : {"out", "loop"})
    EXPECT_THAT(message_of([&] { check_target(root_ / name, true); }), HasSubstr("a symlink that leads nowhere"))
        << name;
  EXPECT_THAT(message_of([&] { check_target("", false); }), HasSubstr("empty path"));
  EXPECT_EQ(entries(), 2u);
}

}  // namespace
}  // namespace sluice

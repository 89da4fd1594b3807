#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "checkpoint/checkpoint_testing.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::safetensors_bytes;
using testing::TempFolder;

std::string open_error(const fs::path& path) {
  return error_of([&] { Checkpoint checkpoint(path); });
}

std::string one_tensor(std::string_view name) { return safetensors_bytes({{std::string(name), "U8", {1}, "x"}}); }

// Two shards: one holds a and c, two holds b.
void write_sharded(
    const TempFolder& folder,
    std::string_view weight_map = R"({"a":"one.safetensors","b":"two.safetensors","c":"one.safetensors"})") {
  folder.write("one.safetensors", safetensors_bytes({{"c", "U8", {1}, "c"}, {"a", "U8", {1}, "a"}}));
  folder.write("two.safetensors", one_tensor("b"));
  folder.write("model.safetensors.index.json",
               fmt::format(R"({{"metadata":{{"total_size":3}},"weight_map":{}}})", weight_map));
}

std::vector<std::string> names(const Checkpoint& checkpoint) {
  std::vector<std::string> out;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) out.emplace_back(tensor.name);
  return out;
}

TEST(Checkpoint, OpensASingleFileByFolderOrByName) {
  const TempFolder folder;
  folder.write("model.safetensors", one_tensor("a"));
  for (const fs::path& path : {folder.path(), folder / "model.safetensors"}) {
    const Checkpoint checkpoint(path);
    EXPECT_THAT(names(checkpoint), ElementsAre("a"));
    EXPECT_EQ(checkpoint.directory(), folder.path());
    EXPECT_EQ(checkpoint.files()[0].name, "model.safetensors");
    EXPECT_EQ(checkpoint.files()[0].bytes, one_tensor("a").size());
    EXPECT_EQ(checkpoint.index(), nullptr);
    EXPECT_THAT(checkpoint.notices(), IsEmpty());
  }
}

TEST(Checkpoint, OpensShardsThroughTheIndex) {
  const TempFolder folder;
  write_sharded(folder);
  Checkpoint opened(folder.path());
  const CheckpointTensor* b = opened.find("b");
  const Checkpoint checkpoint = std::move(opened);
  EXPECT_THAT(names(checkpoint), ElementsAre("a", "b", "c"));
  EXPECT_EQ(checkpoint.find("b"), b);
  EXPECT_EQ(checkpoint.files()[static_cast<std::size_t>(b->file)].name, "two.safetensors");
  EXPECT_EQ(&checkpoint.mapping_of(b->view->bytes), &checkpoint.mapping(b->file));
  EXPECT_EQ(checkpoint.find("d"), nullptr);
  EXPECT_EQ(checkpoint.index()->name, "model.safetensors.index.json");
  EXPECT_EQ(checkpoint.tensor_bytes(), 3u);
}

TEST(Checkpoint, LetsTheIndexDecideAndNamesStrays) {
  const TempFolder folder;
  write_sharded(folder);
  folder.write("model.safetensors", "not even a safetensors file");
  folder.write("consolidated.safetensors", one_tensor("a"));
  const Checkpoint checkpoint(folder.path());
  EXPECT_THAT(names(checkpoint), ElementsAre("a", "b", "c"));
  EXPECT_THAT(checkpoint.notices(),
              ElementsAre(AllOf(HasSubstr("consolidated.safetensors"), HasSubstr("model.safetensors"))));
}

TEST(Checkpoint, IgnoresStraysBesideASingleFileWithANotice) {
  const TempFolder folder;
  folder.write("model.safetensors", one_tensor("a"));
  folder.write("model-00001-of-00002.safetensors", one_tensor("b"));
  const Checkpoint checkpoint(folder.path());
  EXPECT_THAT(names(checkpoint), ElementsAre("a"));
  EXPECT_THAT(checkpoint.notices(), ElementsAre(HasSubstr("model-00001-of-00002.safetensors")));
}

TEST(Checkpoint, FollowsTheSymlinksOfAHubCache) {
  const TempFolder folder;
  folder.write("blobs/0a1b", one_tensor("a"));
  folder.write("blobs/2c3d", R"({"weight_map":{"a":"model-00001-of-00001.safetensors"}})");
  fs::create_directories(folder / "snapshots/main");
  fs::create_symlink("../../blobs/0a1b", folder / "snapshots/main/model-00001-of-00001.safetensors");
  fs::create_symlink("../../blobs/2c3d", folder / "snapshots/main/model.safetensors.index.json");
  const Checkpoint checkpoint(folder / "snapshots/main");
  EXPECT_THAT(names(checkpoint), ElementsAre("a"));
  EXPECT_EQ(checkpoint.files()[0].path, folder / "snapshots/main/model-00001-of-00001.safetensors");
  fs::remove(folder / "blobs/0a1b");
  EXPECT_THAT(open_error(folder / "snapshots/main"), AllOf(HasSubstr("model-00001-of-00001.safetensors"),
                                                           HasSubstr("blobs/0a1b"), HasSubstr("does not exist")));
}

TEST(Checkpoint, NamesTheShardsThatAStaleIndexMisses) {
  const TempFolder folder;
  write_sharded(folder);
  fs::remove(folder / "two.safetensors");
  folder.write("model.safetensors", one_tensor("a"));
  EXPECT_THAT(open_error(folder.path()),
              AllOf(HasSubstr("model.safetensors.index.json"), HasSubstr("two.safetensors"), HasSubstr("1 of the 2")));
}

TEST(Checkpoint, RefusesATensorMappedToAShardThatLacksIt) {
  const TempFolder folder;
  write_sharded(folder,
                R"({"a":"one.safetensors","b":"two.safetensors","c":"one.safetensors","ghost":"two.safetensors"})");
  EXPECT_THAT(open_error(folder.path()),
              AllOf(HasSubstr("\"ghost\""), HasSubstr("two.safetensors"), HasSubstr("does not hold it")));
  write_sharded(folder, R"({"a":"two.safetensors","b":"two.safetensors","c":"one.safetensors"})");
  EXPECT_THAT(open_error(folder.path()), AllOf(HasSubstr("\"a\""), HasSubstr("two.safetensors")));
}

TEST(Checkpoint, RefusesATensorThatTheIndexLeavesOut) {
  const TempFolder folder;
  write_sharded(folder, R"({"a":"one.safetensors","b":"two.safetensors"})");
  EXPECT_THAT(open_error(folder.path()),
              AllOf(HasSubstr("\"c\""), HasSubstr("one.safetensors"), HasSubstr("weight_map")));
}

TEST(Checkpoint, RefusesATensorInTwoShards) {
  const TempFolder folder;
  write_sharded(folder);
  folder.write("two.safetensors", safetensors_bytes({{"b", "U8", {1}, "b"}, {"a", "U8", {1}, "a"}}));
  EXPECT_THAT(open_error(folder.path()),
              AllOf(HasSubstr("\"a\""), HasSubstr("one.safetensors"), HasSubstr("two.safetensors")));
}

TEST(Checkpoint, RefusesShardsOutsideTheFolder) {
  const TempFolder folder;
  folder.write("outside.safetensors", one_tensor("a"));
  for (const std::string shard :
       {"../outside.safetensors", "x/../../outside.safetensors", "/etc/passwd", "..", "", "model\\u0000.safetensors"}) {
    folder.write("inner/model.safetensors.index.json", fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", shard));
    EXPECT_THAT(open_error(folder / "inner"), AllOf(HasSubstr("shard"), HasSubstr("outside the folder"))) << shard;
  }
  folder.write("inner/model.safetensors.index.json", R"({"weight_map":{"a":"config.json"}})");
  EXPECT_THAT(open_error(folder / "inner"), HasSubstr("no .safetensors file"));
}

TEST(Checkpoint, RefusesAnIndexThatIsNone) {
  const TempFolder folder;
  for (const std::string text :
       {"", "{", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})",
        R"({"weight_map":null})", R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})"}) {
    folder.write("model.safetensors.index.json", text);
    EXPECT_THAT(open_error(folder.path()), HasSubstr("model.safetensors.index.json")) << text;
  }
  fs::remove(folder / "model.safetensors.index.json");
  fs::create_directory(folder / "model.safetensors.index.json");
  EXPECT_THAT(open_error(folder.path()), AllOf(HasSubstr("model.safetensors.index.json"), HasSubstr("a folder")));
}

TEST(Checkpoint, SaysWhatWasLookedForWhenThereAreNoWeights) {
  const TempFolder folder;
  EXPECT_THAT(open_error(folder.path()), AllOf(HasSubstr(folder.path().string()), HasSubstr("model.safetensors"),
                                               HasSubstr("model.safetensors.index.json")));
  folder.write("model-00001-of-00002.safetensors", one_tensor("a"));
  EXPECT_THAT(open_error(folder.path()), HasSubstr("give the path of that file"));
  folder.write("model-00002-of-00002.safetensors", one_tensor("b"));
  EXPECT_THAT(open_error(folder.path()), AllOf(HasSubstr("model-00002-of-00002.safetensors"), HasSubstr("index")));
}

TEST(Checkpoint, NamesOtherFormats) {
  for (const std::string name :
       {"pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.gguf", "consolidated.00.pth", "tf_model.h5"}) {
    const TempFolder folder;
    folder.write(name, "x");
    EXPECT_THAT(open_error(folder.path()), AllOf(HasSubstr(name), HasSubstr("safetensors")));
  }
  const TempFolder folder;
  folder.write("model.gguf", "x");
  EXPECT_THAT(open_error(folder / "model.gguf"),
              AllOf(HasSubstr("model.gguf"), HasSubstr("expected a checkpoint folder or a .safetensors file")));
}

TEST(Checkpoint, RefusesLoraAdaptersByName) {
  const TempFolder folder;
  folder.write("adapter_model.safetensors", one_tensor("base_model.model.x.lora_A.weight"));
  EXPECT_THAT(open_error(folder.path()),
              AllOf(HasSubstr("adapter_model.safetensors"), HasSubstr("LoRA"), HasSubstr("merge")));
  folder.write("adapter_config.json", "{}");
  folder.write("model.safetensors", one_tensor("a"));
  EXPECT_THAT(open_error(folder.path()), AllOf(HasSubstr("adapter_config.json"), HasSubstr("LoRA")));
}

TEST(Checkpoint, SaysWhenAPathIsNothingOrAHubName) {
  EXPECT_THAT(open_error("/nonexistent/model"), AllOf(HasSubstr("/nonexistent/model"), HasSubstr("no such")));
  EXPECT_THAT(open_error("Qwen/Qwen3.5-0.8B"), AllOf(HasSubstr("Qwen/Qwen3.5-0.8B"), HasSubstr("download")));
}

TEST(Checkpoint, NeverWaitsOnAPipeAndNamesFolders) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "model.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(open_error(folder.path()), AllOf(HasSubstr("model.safetensors"), HasSubstr("regular file")));
  fs::remove(folder / "model.safetensors");
  fs::create_directory(folder / "model.safetensors");
  EXPECT_THAT(open_error(folder.path()), AllOf(HasSubstr("model.safetensors"), HasSubstr("regular file")));
  fs::remove(folder / "model.safetensors");
  ASSERT_EQ(::mkfifo((folder / "model.safetensors.index.json").c_str(), 0600), 0);
  EXPECT_THAT(open_error(folder.path()),
              AllOf(HasSubstr("model.safetensors.index.json"), HasSubstr("expected a file")));
}

TEST(Checkpoint, NamesAnUnreadableFile) {
  if (::geteuid() == 0) GTEST_SKIP() << "root reads everything";
  const TempFolder folder;
  folder.write("model.safetensors", one_tensor("a"));
  fs::permissions(folder / "model.safetensors", fs::perms::none);
  EXPECT_THAT(open_error(folder.path()), AllOf(HasSubstr("model.safetensors"), HasSubstr("cannot be opened")));
}

}  // namespace
}  // namespace sluice

#include "export/side_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"

namespace sluice {
namespace fs = std::filesystem;
namespace {

using ::testing::ElementsAre;

class SideFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "sluice-side-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
    config_.vocab = 100;
    config_.eos_ids = {44};
  }
  void TearDown() override { fs::remove_all(root_); }
  void put(const char* name, const std::string& text) const { std::ofstream(root_ / name) << text; }

  fs::path root_;
  HybridConfig config_;
};

TEST_F(SideFilesTest, EosIsTheUnionTokenizerFirst) {
  put("tokenizer.json",
      R"({"added_tokens":[{"id":46,"content":"<|im_end|>"},{"id":50,"content":"<think>"}],"model":{"vocab":{"a":0}}})");
  put("tokenizer_config.json", R"({"eos_token":{"content":"<|im_end|>"}})");
  put("generation_config.json",
      R"({"eos_token_id":[44,46,45],"pad_token_id":43,"temperature":0.7,"top_k":20,"do_sample":true})");
  const SideFiles side = read_side_files(root_, config_);
  EXPECT_THAT(side.eos_ids, ElementsAre(46, 44, 45));
  EXPECT_EQ(side.pad_id, 43);
  EXPECT_EQ(side.markers.begin_reasoning, 50);
  EXPECT_FALSE(side.markers.begin_tool.has_value());
  EXPECT_EQ(side.search.top_k, 20);
  EXPECT_TRUE(side.search.do_sample);
  EXPECT_THAT(side.names, ElementsAre("tokenizer.json", "tokenizer_config.json", "generation_config.json"));
}

TEST_F(SideFilesTest, ACheckpointWithoutAnyUsesTheConfigAndSaysSo) {
  const SideFiles side = read_side_files(root_, config_);
  EXPECT_THAT(side.eos_ids, ElementsAre(44));
  EXPECT_EQ(side.pad_id, 44);
  EXPECT_EQ(side.notices.size(), 1u);
}

TEST_F(SideFilesTest, AnIdOutsideTheVocabularyIsRefused) {
  put("generation_config.json", R"({"eos_token_id":100})");
  EXPECT_THROW(read_side_files(root_, config_), Error);
}

TEST_F(SideFilesTest, WrongTypesNameFileAndKey) {
  put("generation_config.json", R"({"top_k":"many"})");
  try {
    read_side_files(root_, config_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("generation_config.json: top_k"));
  }
}

}  // namespace
}  // namespace sluice

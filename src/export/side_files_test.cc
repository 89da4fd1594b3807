#include "export/side_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "tests/support/message_of.h"

namespace sluice {
namespace fs = std::filesystem;
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
  std::string message() const {
    return testing::message_of([&] { read_side_files(root_, config_); });
  }

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

TEST_F(SideFilesTest, WhatIsNoObjectIsRefusedByName) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    for (const char* text : {"[]", "null", "3", "\"x\""}) {
      put(name, text);
      EXPECT_THAT(message(), HasSubstr(std::string(name) + ": expected an object, found")) << text;
    }
    fs::remove(root_ / name);
  }
}

TEST_F(SideFilesTest, SearchValuesOutOfSenseAreRefusedByName) {
  const std::pair<const char*, const char*> values[] = {{"temperature", "-1"},
                                                        {"top_k", "-5"},
                                                        {"top_p", "1.5"},
                                                        {"top_p", "-0.1"},
                                                        {"repetition_penalty", "0"},
                                                        {"repetition_penalty", "-2"},
                                                        {"temperature", "1e300"},
                                                        {"top_k", "9000000000"}};
  for (const auto& [key, value] : values) {
    put("generation_config.json", std::string("{\"") + key + "\":" + value + "}");
    EXPECT_THAT(message(), HasSubstr(std::string("generation_config.json: ") + key + " is")) << value;
  }
  put("generation_config.json", R"({"temperature":0,"top_k":0,"top_p":1,"repetition_penalty":1})");
  EXPECT_EQ(message(), "no error");
}

// Left out silently, a package would lose its tokenizer to an interrupted download.
TEST_F(SideFilesTest, WhatIsThereAndNoFileIsRefusedByName) {
  for (const char* name : {"tokenizer.json", "generation_config.json", "chat_template.jinja", "README.md"}) {
    fs::create_symlink(root_ / "gone", root_ / name);
    EXPECT_THAT(message(), HasSubstr(std::string(name) + ": a symlink to")) << name;
    fs::remove(root_ / name);
    fs::create_directory(root_ / name);
    EXPECT_THAT(message(), HasSubstr(std::string(name) + ": expected a file, found a folder")) << name;
    fs::remove(root_ / name);
  }
}

}  // namespace
}  // namespace sluice

#include "package/genai_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> keys(const Json& json) {
  std::vector<std::string> out;
  for (const auto& [key, value] : json.as_object("json")) out.push_back(key);
  return out;
}

GenaiConfig packed(std::int64_t capacity) {
  GenaiConfig config;
  Manifest& m = config.manifest;
  m.target = "sluice";
  m.layout = Layout::packed;
  m.block_size = 16;
  m.kv_blocks = 64;
  m.max_batch = 4;
  m.state_update_capacity = capacity;
  m.model.family = "qwen3_5";
  m.model.linear_k_heads = 2;
  m.model.eos_ids = {1, 2};
  GraphInfo g{"decoder", "model.onnx", {{"input_ids", DType::i64, {}}, {"block_table", DType::i32, {}}}, {}, {}};
  for (std::int64_t layer : {0, 1}) {
    g.states.push_back({StateKind::conv, layer, DType::f32, {}, "", ""});
    g.states.push_back({StateKind::recurrent, layer, DType::f32, {}, "", ""});
  }
  g.states.push_back({StateKind::paged_kv, 2, DType::f32, {}, "", ""});
  g.states.push_back({StateKind::paged_kv, 2, DType::f32, {}, "", ""});
  m.graphs.push_back(g);
  config.custom_ops_library = "libsluice_ops.so";
  return config;
}

TEST(GenaiConfig, ThePackedDocumentHasGroupsAndThePinnedPool) {
  const Json json = genai_config_json(packed(0));
  EXPECT_THAT(keys(json), ElementsAre("model", "search", "engine"));
  const Json& decoder = json.at("model", "").at("decoder", "");
  const auto& groups = decoder.at("state_groups", "").as_array("");
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].dump(-1), R"({"kind":"paged_kv","layer_ids":[2]})");
  EXPECT_EQ(groups[1].dump(-1), R"({"kind":"fixed_conv","layer_ids":[0,1]})");
  EXPECT_EQ(groups[2].dump(-1), R"({"kind":"fixed_recurrent","layer_ids":[0,1]})");
  EXPECT_EQ(json.at("engine", "").dump(-1),
            R"({"dynamic_batching":{"block_size":16,"max_batch_size":4,"num_blocks":64}})");
  EXPECT_EQ(decoder.at("session_options", "").at("custom_ops_library", "").as_string(""), "libsluice_ops.so");
  EXPECT_EQ(decoder.find("state_update_capacity"), nullptr);
}

TEST(GenaiConfig, CaptureNamesItsPortsAndKeyHeads) {
  const Json json = genai_config_json(packed(4));
  const Json& decoder = json.at("model", "").at("decoder", "");
  EXPECT_EQ(decoder.at("state_groups", "").as_array("")[2].at("state_update", "").dump(-1),
            R"({"capacity":4,"key_head_count":2})");
  EXPECT_EQ(decoder.at("state_update_capacity", "").as_int(""), 4);
  EXPECT_NE(decoder.at("outputs", "").find("state_update_recurrent_capsule_names"), nullptr);
}

TEST(GenaiConfig, ADenseDocumentHasNoGroupsAndNoEngine) {
  GenaiConfig config = packed(0);
  config.manifest.layout = Layout::dense;
  config.manifest.target = "ort-cpu";
  config.custom_ops_library.clear();
  config.manifest.model.pad_id = 9;
  const Json json = genai_config_json(config);
  EXPECT_THAT(keys(json), ElementsAre("model", "search"));
  EXPECT_EQ(json.at("model", "").at("decoder", "").find("state_groups"), nullptr);
  EXPECT_EQ(json.at("model", "").at("pad_token_id", "").as_int(""), 9);
  EXPECT_THAT(keys(json.at("search", "")),
              ElementsAre("diversity_penalty", "do_sample", "early_stopping", "length_penalty", "max_length",
                          "min_length", "no_repeat_ngram_size", "num_beams", "num_return_sequences",
                          "past_present_share_buffer", "repetition_penalty", "temperature", "top_k", "top_p"));
}

}  // namespace
}  // namespace sluice

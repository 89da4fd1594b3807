#include "package/manifest.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "package/paths.h"
#include "tests/support/message_of.h"

namespace sluice {
namespace {

using sluice::testing::message_of;

Manifest sample() {
  Manifest m;
  m.sluice_version = "0.1.0";
  m.target = "sluice";
  m.layout = Layout::packed;
  m.recurrence = Recurrence::gated_delta_net;
  m.gates = Gates::raw;
  m.block_size = 16;
  m.kv_blocks = 64;
  m.max_batch = 4;
  m.qk_norm_epsilon = 1e-12;
  m.model.model_type = "qwen3_5_text";
  m.model.family = "qwen3_5";
  m.model.layers = 2;
  m.model.layer_kinds = {"linear_attention", "full_attention"};
  m.model.eos_ids = {5, 7};
  m.model.pad_id = 5;
  GraphInfo g{"decoder", "model.onnx", {{"input_ids", DType::i64, {{-1, "num_tokens"}}}}, {}, {}};
  g.states.push_back({StateKind::recurrent, 0, DType::f32, {{-1, "batch_size"}, {4, ""}, {8, ""}, {8, ""}}, "a", "b"});
  m.graphs.push_back(g);
  m.weights_index.push_back(
      {"w", "lm_head", DType::bf16, {3, 4}, "model.onnx.data", 1ull << 40, 24, "neg_exp", "00112233"});
  m.files.push_back({"model.onnx", 12, "0123456789abcdef"});
  m.options.set("dtype", "fp32");
  return m;
}

TEST(Manifest, SurvivesTheWayToJsonAndBack) {
  const Json json = to_json(sample());
  const Manifest back = manifest_from_json(parse_json(json.dump(), "sluice.json"), "sluice.json");
  EXPECT_EQ(json.dump(), to_json(back).dump());
  EXPECT_EQ(back.graphs[0].states[0].shape[0].symbol, "batch_size");
  EXPECT_EQ(back.weights_index[0].offset, 1ull << 40);
  EXPECT_EQ(back.qk_norm_epsilon, 1e-12);
  EXPECT_FALSE(back.model.bos_id.has_value());
  EXPECT_EQ(back.model.pad_id, 5);
}

TEST(Manifest, EveryMissingKeyIsNamed) {
  const Json json = to_json(sample());
  for (const auto& [key, value] : json.as_object("")) {
    Json::Object rest;
    for (const auto& member : json.as_object("")) {
      if (member.first != key) rest.push_back(member);
    }
    const std::string text = message_of([&] { manifest_from_json(Json(rest), "sluice.json"); });
    EXPECT_NE(text.find('"' + key + '"'), std::string::npos) << key << ": " << text;
  }
}

TEST(Manifest, AWrongTypeOrALaterFormatIsNamed) {
  Json json = to_json(sample());
  json.set("sluice_format", 2);
  EXPECT_NE(message_of([&] { manifest_from_json(json, "m"); }).find("sluice_format is 2"), std::string::npos);
  json = to_json(sample());
  json.set("layout", "sparse");
  EXPECT_NE(message_of([&] { manifest_from_json(json, "m"); }).find("m: layout: \"sparse\""), std::string::npos);
  json = to_json(sample());
  json.set("block_size", "16");
  EXPECT_NE(message_of([&] { manifest_from_json(json, "m"); }).find("m: block_size: expected an integer"),
            std::string::npos);
}

TEST(Manifest, PathsThatLeaveThePackageAreRefused) {
  for (const char* path : {"", "/etc/passwd", "../x", "a/../../x"}) {
    EXPECT_THROW(check_relative_path(path, "m"), Error) << path;
  }
  EXPECT_NO_THROW(check_relative_path("sub/model.onnx", "m"));
}

TEST(Manifest, AFolderWithoutOneIsNoPackage) {
  EXPECT_NE(message_of([] { read_manifest("/nonexistent"); }).find("not a whole Sluice package"), std::string::npos);
}

}  // namespace
}  // namespace sluice

#include "weights/weight_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "weights/weights_testing.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using testing::ConfigText;
using ::testing::Contains;
using testing::dense_config;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::make_tensors;
using testing::moe_config;
using testing::next_config;
using testing::TempFolder;
using testing::tensor_named;
using testing::TestTensor;
using testing::wrapped;
using testing::write_model;

const std::string kGoldens = std::string(SLUICE_SOURCE_DIR) + "/tests/data/goldens/";

std::string open_error(const ConfigText& config, const std::vector<TestTensor>& tensors) {
  const TempFolder folder;
  write_model(folder, config, tensors);
  return error_of([&] { open_model(folder.path()); });
}

std::vector<float> stored(const TestTensor& tensor) {
  std::vector<float> out(tensor.data.size() / 2);
  for (std::size_t i = 0; i < out.size(); ++i) {
    bf16 value;
    std::memcpy(&value.bits, tensor.data.data() + 2 * i, 2);
    out[i] = to_f32(value);
  }
  return out;
}

// A row of `width` values.
std::vector<float> row(const std::vector<float>& values, std::int64_t index, std::int64_t width) {
  return {values.begin() + index * width, values.begin() + (index + 1) * width};
}

TEST(WeightSource, ResolvesEveryPrefixWhateverTheNesting) {
  for (const std::string prefix : {"model.", "model.language_model.", "language_model.model.", "language_model.", ""}) {
    for (const ConfigText& config : {dense_config(), wrapped(dense_config(), "qwen3_5")}) {
      const TempFolder folder;
      write_model(folder, config, make_tensors(dense_config().read(), prefix));
      const ModelSource model = open_model(folder.path());
      EXPECT_EQ(model.weights.prefix(), prefix);
      EXPECT_EQ(model.weights.weights().size(), weight_table(model.config).size());
      EXPECT_THAT(model.weights.unused(), IsEmpty());
      EXPECT_THAT(model.notices(), IsEmpty());
    }
  }
}

TEST(WeightSource, FindsTheHeadAtTheRootOrUnderAPrefix) {
  for (const std::string head : {"lm_head.weight", "model.lm_head.weight", "language_model.lm_head.weight",
                                 "model.language_model.lm_head.weight"}) {
    auto tensors = make_tensors(dense_config().read(), "model.language_model.");
    tensor_named(tensors, "lm_head.weight").name = head;
    const TempFolder folder;
    write_model(folder, dense_config(), tensors);
    EXPECT_THAT(open_model(folder.path()).weights.at("lm_head").tensors, ElementsAre(head));
  }
}

TEST(WeightSource, OpensAFileWithTheConfigBesideIt) {
  const TempFolder folder;
  write_model(folder, dense_config(), make_tensors(dense_config().read()));
  EXPECT_EQ(open_model(folder / "model.safetensors").weights.prefix(), "model.");
}

TEST(WeightSource, SaysWhichNamesItSawWhenThePrefixIsUnknown) {
  EXPECT_THAT(open_error(dense_config(),
                         make_tensors(dense_config().read(), "model.language_model.language_model.language_model.")),
              AllOf(HasSubstr("no language model"), HasSubstr("lm_head.weight"),
                    HasSubstr("model.language_model.language_model.language_model.embed_tokens.weight")));
  EXPECT_THAT(open_error(dense_config(), {}), AllOf(HasSubstr("0 tensors"), HasSubstr("(none)")));
  auto both = make_tensors(dense_config().read());
  both.push_back({"layers.0.input_layernorm.weight", "BF16", {64}, std::string(128, 0)});
  EXPECT_THAT(open_error(dense_config(), both), AllOf(HasSubstr("both"), HasSubstr("\"model.\"")));
}

TEST(WeightSource, TakesQwen3NextsGroupsApart) {
  const HybridConfig c = next_config().read();
  auto tensors = make_tensors(c, "model.", 1);
  const TempFolder folder;
  write_model(folder, next_config(), tensors);
  const ModelSource model = open_model(folder.path());
  const auto qkvz = stored(tensor_named(tensors, "model.layers.0.linear_attn.in_proj_qkvz.weight"));
  const auto ba = stored(tensor_named(tensors, "model.layers.0.linear_attn.in_proj_ba.weight"));
  const auto qkv = read_all<float>(model.weights.at("layers.0.linear.qkv")),
             z = read_all<float>(model.weights.at("layers.0.linear.z"));
  const auto b = read_all<float>(model.weights.at("layers.0.linear.b")),
             a = read_all<float>(model.weights.at("layers.0.linear.a"));
  const std::int64_t r = c.linear_v_heads / c.linear_k_heads, dk = c.linear_k_dim, dv = c.linear_v_dim,
                     group = 2 * dk + 2 * r * dv;
  for (std::int64_t head = 0; head < c.linear_v_heads; ++head) {  // value head h reads key head h / r
    const std::int64_t key = head / r, within = head % r;
    for (std::int64_t i = 0; i < dk; ++i) {
      EXPECT_EQ(row(qkv, key * dk + i, c.hidden), row(qkvz, key * group + i, c.hidden));
      EXPECT_EQ(row(qkv, c.key_dim() + key * dk + i, c.hidden), row(qkvz, key * group + dk + i, c.hidden));
    }
    for (std::int64_t i = 0; i < dv; ++i) {
      EXPECT_EQ(row(qkv, 2 * c.key_dim() + head * dv + i, c.hidden),
                row(qkvz, key * group + 2 * dk + within * dv + i, c.hidden));
      EXPECT_EQ(row(z, head * dv + i, c.hidden), row(qkvz, key * group + 2 * dk + (r + within) * dv + i, c.hidden));
    }
    EXPECT_EQ(row(b, head, c.hidden), row(ba, key * 2 * r + within, c.hidden));
    EXPECT_EQ(row(a, head, c.hidden), row(ba, key * 2 * r + r + within, c.hidden));
  }
}

TEST(WeightSource, StacksExpertsStoredOneByOneLikeFusedOnes) {
  const HybridConfig c = moe_config().read();
  const std::int64_t experts = c.moe->experts, inner = c.moe->intermediate;
  auto apart = make_tensors(c, "model.", 1);
  const TempFolder folder;
  write_model(folder, moe_config(), apart);
  const ModelSource model = open_model(folder.path());
  const auto gate_up = read_all<float>(model.weights.at("layers.2.moe.gate_up")),
             down = read_all<float>(model.weights.at("layers.2.moe.down"));
  ASSERT_EQ(static_cast<std::int64_t>(gate_up.size()), experts * 2 * inner * c.hidden);
  for (std::int64_t e = 0; e < experts; ++e) {
    const auto part = [&](const char* name) {
      return stored(tensor_named(apart, fmt::format("model.layers.2.mlp.experts.{}.{}_proj.weight", e, name)));
    };
    EXPECT_EQ(row(gate_up, 2 * e, inner * c.hidden), part("gate")) << e;
    EXPECT_EQ(row(gate_up, 2 * e + 1, inner * c.hidden), part("up")) << e;
    EXPECT_EQ(row(down, e, inner * c.hidden), part("down")) << e;
  }
  // Stored one after the other, gate before up: one piece.
  EXPECT_EQ(model.weights.at("layers.2.moe.gate_up").tensors.size(), static_cast<std::size_t>(2 * experts));
  auto fused = make_tensors(c);
  const auto expected = stored(tensor_named(fused, "model.layers.2.mlp.experts.gate_up_proj"));
  write_model(folder, moe_config(), fused);
  const ModelSource other = open_model(folder.path());
  EXPECT_EQ(read_all<float>(other.weights.at("layers.2.moe.gate_up")), expected);
  EXPECT_EQ(other.weights.at("layers.2.moe.gate_up").pieces.size(), 1u);
}

TEST(WeightSource, JoinsNeighboursIntoOnePieceButNeverAcrossFiles) {
  const HybridConfig c = moe_config().read();
  const auto tensors = make_tensors(c, "model.", 1);
  std::vector<TestTensor> first, second;
  std::string map;
  for (const TestTensor& tensor : tensors) {
    const bool in_second = tensor.name.find("experts.3.") != std::string::npos;
    (in_second ? second : first).push_back(tensor);
    map += fmt::format("{}\"{}\":\"{}.safetensors\"", map.empty() ? "" : ",", tensor.name, in_second ? "b" : "a");
  }
  const TempFolder folder;
  folder.write("config.json", moe_config().text());
  folder.write("a.safetensors", testing::safetensors_bytes(first));
  folder.write("b.safetensors", testing::safetensors_bytes(second));
  folder.write("model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
  const ModelSource model = open_model(folder.path());
  const CanonicalWeight& gate_up = model.weights.at("layers.0.moe.gate_up");
  EXPECT_EQ(gate_up.pieces.size(), 3u);  // experts 0..2, 3, 4..7
  for (const WeightPiece& piece : gate_up.pieces) EXPECT_NO_THROW(model.checkpoint.mapping_of(piece.bytes));
  const TempFolder whole;
  write_model(whole, moe_config(), tensors);
  EXPECT_EQ(read_all<float>(gate_up), read_all<float>(open_model(whole.path()).weights.at("layers.0.moe.gate_up")));
}

TEST(WeightSource, WidensEveryDTypeExactlyAndAddsOneToZeroCentredNorms) {
  auto tensors = make_tensors(dense_config().read());
  TestTensor& norm = tensor_named(tensors, "model.norm.weight");
  std::vector<float> f32(64);
  for (std::size_t i = 0; i < 64; ++i) f32[i] = std::ldexp(1.0f + static_cast<float>(i), -20);
  norm = {norm.name, "F32", {64}, std::string(reinterpret_cast<const char*>(f32.data()), 256)};
  TestTensor& gated = tensor_named(tensors, "model.layers.0.linear_attn.norm.weight");
  std::string halves;
  for (std::size_t i = 0; i < 24; ++i) {
    const std::uint16_t bits = to_f16(0.5f + static_cast<float>(i) / 1024).bits;
    halves.append(reinterpret_cast<const char*>(&bits), 2);
  }
  gated = {gated.name, "F16", {24}, halves};
  const TempFolder folder;
  write_model(folder, dense_config(), tensors);
  const ModelSource model = open_model(folder.path());
  EXPECT_EQ(model.weights.at("norm").dtype(), DType::f32);
  EXPECT_EQ(model.weights.at("layers.0.linear.norm").dtype(), DType::f16);
  EXPECT_EQ(model.weights.at("embed_tokens").dtype(), DType::bf16);
  const auto in_double = read_all<double>(model.weights.at("norm"));
  const auto in_float = read_all<float>(model.weights.at("norm"));
  const auto plain = read_all<float>(model.weights.at("layers.0.linear.norm"));
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(in_double[i], 1.0 + static_cast<double>(f32[i]));
    EXPECT_EQ(in_float[i], 1.0f + f32[i]);
  }
  for (std::size_t i = 0; i < 24; ++i) EXPECT_EQ(plain[i], 0.5f + static_cast<float>(i) / 1024);
}

TEST(WeightSource, ReadsAnyRangeOfElements) {
  const HybridConfig c = moe_config().read();
  const TempFolder folder;
  auto tensors = make_tensors(c, "model.", 1);
  std::sort(tensors.begin(), tensors.end(),
            [](const TestTensor& a, const TestTensor& b) { return a.name < b.name; });  // as checkpoints are written
  write_model(folder, moe_config(), tensors);
  const ModelSource model = open_model(folder.path());
  const CanonicalWeight& down = model.weights.at("layers.0.moe.down");
  ASSERT_EQ(down.pieces.size(), 8u);
  const auto all = read_all<double>(down);
  EXPECT_EQ(down.elements(), all.size());
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t first = random() % all.size(), count = random() % (all.size() - first + 1);
    std::vector<double> part(count);
    read_elements<double>(down, first, part);
    ASSERT_TRUE(std::equal(part.begin(), part.end(), all.begin() + static_cast<std::ptrdiff_t>(first)))
        << first << " " << count;
  }
  std::vector<double> beyond(2);
  EXPECT_THROW(read_elements<double>(down, all.size() - 1, std::span<double>(beyond)), std::logic_error);
}

TEST(WeightSource, NamesAMissingTensorAndTheKeyThatAsksForIt) {
  const auto without = [&](const ConfigText& config, std::string_view name, std::size_t form = 0) {
    auto tensors = make_tensors(config.read(), "model.", form);
    std::erase_if(tensors, [&](const TestTensor& tensor) { return tensor.name == name; });
    return open_error(config, tensors);
  };
  EXPECT_THAT(without(dense_config(), "lm_head.weight"),
              AllOf(HasSubstr("\"lm_head.weight\""), HasSubstr("missing"), HasSubstr("tie_word_embeddings is false")));
  EXPECT_THAT(without(dense_config(), "model.embed_tokens.weight"),
              AllOf(HasSubstr("\"model.embed_tokens.weight\""), HasSubstr("missing")));
  EXPECT_THAT(without(dense_config(), "model.norm.weight"), HasSubstr("\"model.norm.weight\""));
  EXPECT_THAT(without(dense_config(), "model.layers.0.linear_attn.dt_bias"),
              AllOf(HasSubstr("layers.0.linear_attn.dt_bias"), HasSubstr("layer 0 is linear_attention")));
  EXPECT_THAT(without(dense_config(), "model.layers.3.self_attn.k_norm.weight"),
              AllOf(HasSubstr("layers.3.self_attn.k_norm"), HasSubstr("layer 3 is full_attention")));
  EXPECT_THAT(without(dense_config(), "model.layers.2.post_attention_layernorm.weight"),
              HasSubstr("num_hidden_layers is 4"));
  EXPECT_THAT(without(dense_config().with("attention_bias", "true"), "model.layers.3.self_attn.o_proj.bias"),
              HasSubstr("attention_bias is true"));
  EXPECT_THAT(without(moe_config(), "model.layers.1.mlp.experts.5.up_proj.weight", 1),
              AllOf(HasSubstr("experts.5.up_proj"), HasSubstr("8 experts")));
  EXPECT_THAT(without(moe_config(), "model.layers.1.mlp.experts.down_proj"), HasSubstr("experts.down_proj"));
}

// Every tensor of every family: taken away, renamed, of another shape, of another dtype.
TEST(WeightSource, NamesEveryTensorThatIsMissingOrWrong) {
  for (const auto& [config, form] : {std::pair(dense_config().with("attention_bias", "true"), 0),
                                     std::pair(moe_config(), 0), std::pair(next_config(), 1)}) {
    const auto whole = make_tensors(config.read(), "model.", static_cast<std::size_t>(form));
    const TempFolder folder;
    const auto error_with = [&](std::size_t i, const TestTensor* instead) {
      auto tensors = whole;
      if (instead == nullptr) {
        tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        tensors[i] = *instead;
      }
      write_model(folder, config, tensors);
      return error_of([&] { open_model(folder.path()); });
    };
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const TestTensor& tensor = whole[i];
      // One layer of each kind and one expert stand for the rest.
      const bool repeated =
          tensor.name.find("layers.1.") != std::string::npos || tensor.name.find("layers.2.") != std::string::npos;
      if (repeated || (tensor.name.find(".experts.") != std::string::npos && form == 1 &&
                       tensor.name.find(".experts.5.") == std::string::npos))
        continue;
      EXPECT_THAT(error_with(i, nullptr), AllOf(HasSubstr("\"" + tensor.name + "\""), HasSubstr("missing")));
      TestTensor flat{tensor.name, "BF16", {static_cast<std::int64_t>(tensor.data.size() / 2), 1}, tensor.data};
      EXPECT_THAT(error_with(i, &flat), AllOf(HasSubstr("\"" + tensor.name + "\""), HasSubstr(to_string(flat.shape)),
                                              HasSubstr(to_string(tensor.shape))));
      TestTensor integer{tensor.name, "I16", tensor.shape, tensor.data};
      EXPECT_THAT(error_with(i, &integer),
                  AllOf(HasSubstr("\"" + tensor.name + "\""), HasSubstr("I16"), HasSubstr("BF16, F16, F32")));
      TestTensor empty{tensor.name, "BF16", {0}, ""};
      EXPECT_THAT(error_with(i, &empty),
                  AllOf(HasSubstr("\"" + tensor.name + "\""), HasSubstr("[0]"), HasSubstr(to_string(tensor.shape))));
    }
  }
}

TEST(WeightSource, NamesAnUnexpectedTensorAndTheKeyThatSpeaksAgainstIt) {
  const auto with = [&](const ConfigText& config, const std::string& name) {
    auto tensors = make_tensors(config.read());
    tensors.push_back({name, "BF16", {1}, "xx"});
    return open_error(config, tensors);
  };
  EXPECT_THAT(with(dense_config(), "model.layers.4.mlp.up_proj.weight"),
              AllOf(HasSubstr("layers.4.mlp.up_proj"), HasSubstr("num_hidden_layers is 4")));
  EXPECT_THAT(with(dense_config(), "model.layers.3.self_attn.q_proj.bias"),
              AllOf(HasSubstr("q_proj.bias"), HasSubstr("attention_bias is false")));
  EXPECT_THAT(with(dense_config(), "model.layers.3.linear_attn.A_log"),
              AllOf(HasSubstr("linear_attn.A_log"), HasSubstr("layer 3 is full_attention")));
  EXPECT_THAT(with(dense_config(), "model.layers.0.self_attn.q_proj.weight"), HasSubstr("layer 0 is linear_attention"));
  EXPECT_THAT(with(dense_config(), "model.layers.0.mlp.gate.weight"), HasSubstr("layer 0 has no experts"));
  EXPECT_THAT(with(moe_config(), "model.layers.0.mlp.experts.8.up_proj.weight"), HasSubstr("num_experts is 8"));
  for (const std::string name : {"model.embed_positions.weight", "lm_head.bias", "stray", "model.layers.x.weight",
                                 "model.layers.-1.a", "модель"}) {
    EXPECT_THAT(with(dense_config(), name), AllOf(HasSubstr("\"" + name + "\""), HasSubstr("not expected")));
  }
}

TEST(WeightSource, SaysWhenLayerTypesContradictTheWeights) {
  const ConfigText swapped = dense_config().with(
      "layer_types", R"(["full_attention","linear_attention","linear_attention","linear_attention"])");
  EXPECT_THAT(open_error(swapped, make_tensors(dense_config().read())),
              AllOf(HasSubstr("layers.0.self_attn.q_proj.weight"), HasSubstr("layer 0 is full_attention"),
                    HasSubstr("missing"), HasSubstr("layers.0.linear_attn.A_log")));
}

TEST(WeightSource, NamesTheNamingOfTheOtherFamily) {
  EXPECT_THAT(open_error(dense_config(),
                         make_tensors(next_config().with("intermediate_size", "96").with("num_experts", "0").read())),
              AllOf(HasSubstr("in_proj_qkv.weight"), HasSubstr("in_proj_ba.weight")));
}

TEST(WeightSource, HoldsAHugeVocabularyAgainstTheEmbedding) {
  EXPECT_THAT(open_error(dense_config().with("vocab_size", "1099511627776"), make_tensors(dense_config().read())),
              AllOf(HasSubstr("model.embed_tokens.weight"), HasSubstr("[320, 64]"), HasSubstr("[1099511627776, 64]"),
                    HasSubstr("vocab_size")));
}

TEST(WeightSource, ListsWhatItLeavesOut) {
  auto tensors = make_tensors(dense_config().read(), "model.language_model.");
  for (const std::string name :
       {"mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight", "model.mtp.norm.weight", "model.visual.blocks.0.norm1.bias",
        "visual.pos_embed.weight", "model.language_model.layers.3.self_attn.rotary_emb.inv_freq",
        "model.language_model.rotary_emb.inv_freq"}) {
    tensors.push_back({name, "F32", {1}, "xxxx"});
  }
  const TempFolder folder;
  write_model(folder, dense_config(), tensors);
  const ModelSource model = open_model(folder.path());
  EXPECT_EQ(model.weights.unused().size(), 7u);
  EXPECT_EQ(model.weights.unused()[0].name, "model.language_model.layers.3.self_attn.rotary_emb.inv_freq");
  EXPECT_THAT(model.weights.unused()[0].reason, HasSubstr("rotary"));
  EXPECT_THAT(model.notices(), ElementsAre(AllOf(HasSubstr("multi-token prediction: 3 tensors, 12 bytes"),
                                                 HasSubstr("model.mtp.norm.weight")),
                                           HasSubstr("rotary"), HasSubstr("vision tower: 2 tensors")));
}

TEST(WeightSource, SaysWhenTheConfigAnnouncesPredictionLayersThatAreAbsent) {
  const TempFolder folder;
  write_model(folder, dense_config().with("mtp_num_hidden_layers", "1"), make_tensors(dense_config().read()));
  EXPECT_THAT(open_model(folder.path()).notices(),
              ElementsAre(AllOf(HasSubstr("multi-token prediction"), HasSubstr("no mtp.* tensor"))));
}

TEST(WeightSource, UsesTheEmbeddingOfATiedModelAndWarnsOfAHeadThatDiffers) {
  const ConfigText tied = dense_config().with("tie_word_embeddings", "true");
  auto tensors = make_tensors(dense_config().read());
  TempFolder folder;
  write_model(folder, tied, tensors);
  const ModelSource differs = open_model(folder.path());
  EXPECT_EQ(differs.weights.find("lm_head"), nullptr);
  EXPECT_EQ(differs.weights.unused()[0].name, "lm_head.weight");
  EXPECT_THAT(differs.notices(),
              Contains(AllOf(HasSubstr("WARNING"), HasSubstr("lm_head.weight"), HasSubstr("tie_word_embeddings"))));
  tensor_named(tensors, "lm_head.weight").data = tensor_named(tensors, "model.embed_tokens.weight").data;
  write_model(folder, tied, tensors);
  EXPECT_THAT(open_model(folder.path()).notices(),
              ElementsAre(HasSubstr("tied: the embedding is the output projection: 1 tensor")));
}

TEST(WeightSource, RefusesADisputedTieOnlyWhenTheHeadDiffers) {
  const ConfigText disputed = wrapped(dense_config(), "qwen3_5").with("tie_word_embeddings", "true");
  auto tensors = make_tensors(dense_config().read());
  EXPECT_THAT(open_error(disputed, tensors), AllOf(HasSubstr("tie_word_embeddings"), HasSubstr("lm_head.weight")));
  std::erase_if(tensors, [](const TestTensor& tensor) { return tensor.name == "lm_head.weight"; });
  const TempFolder folder;
  write_model(folder, disputed, tensors);
  EXPECT_EQ(open_model(folder.path()).weights.find("lm_head"), nullptr);
}

TEST(WeightSource, RefusesQuantisedTensorsAndAdaptersByName) {
  const auto with = [&](const TestTensor& extra) {
    auto tensors = make_tensors(dense_config().read());
    tensors.push_back(extra);
    return open_error(dense_config(), tensors);
  };
  for (const std::string ending : {"weight_scale", "weight_scale_inv", "input_scale", "qweight", "qzeros", "scales",
                                   "g_idx", "weight_packed", "SCB"}) {
    const std::string name = "model.layers.0.mlp.gate_proj." + ending;
    EXPECT_THAT(with({name, "F32", {1}, "xxxx"}), AllOf(HasSubstr(name), HasSubstr("quantised")));
  }
  EXPECT_THAT(with({"model.layers.0.mlp.up_proj.lora_A.weight", "F32", {1}, "xxxx"}),
              AllOf(HasSubstr("lora_A"), HasSubstr("LoRA")));
  EXPECT_THAT(
      open_error(dense_config(), {{"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight", "F32", {1}, "xxxx"}}),
      HasSubstr("LoRA"));
  auto tensors = make_tensors(dense_config().read());
  TestTensor& gate = tensor_named(tensors, "model.layers.1.mlp.gate_proj.weight");
  gate = {gate.name, "F8_E4M3", gate.shape, gate.data.substr(0, gate.data.size() / 2)};
  EXPECT_THAT(open_error(dense_config(), tensors),
              AllOf(HasSubstr(gate.name), HasSubstr("F8_E4M3"), HasSubstr("quantised")));
}

TEST(WeightSource, TellsAQuantisedCheckpointBeforeReadingItsTensors) {
  const TempFolder folder;
  folder.write("config.json", dense_config().with("quantization_config", R"({"quant_method":"fp8"})").text());
  folder.write("model.safetensors", "garbage");
  EXPECT_THAT(error_of([&] { open_model(folder.path()); }), AllOf(HasSubstr("quantization_config"), HasSubstr("fp8")));
}

TEST(WeightSource, NamesTheMissingConfig) {
  const TempFolder folder;
  folder.write("model.safetensors", testing::safetensors_bytes(make_tensors(dense_config().read())));
  EXPECT_THAT(error_of([&] { open_model(folder.path()); }), HasSubstr("config.json"));
}

TEST(WeightSource, ResolvesEveryGoldenAndRiverMini) {
  std::vector<std::filesystem::path> folders{std::string(SLUICE_SOURCE_DIR) + "/models/river-mini"};
  for (const auto& item : std::filesystem::directory_iterator(kGoldens)) {
    if (std::filesystem::exists(item.path() / "meta.json")) folders.push_back(item.path());
  }
  ASSERT_EQ(folders.size(), 17u);
  for (const auto& folder : folders) {
    const ModelSource model = open_model(folder);
    std::uint64_t elements = 0;
    for (const CanonicalWeight& weight : model.weights.weights()) {
      EXPECT_EQ(weight.elements(), element_count(weight.shape)) << weight.name;
      elements += weight.elements();
    }
    for (const UnusedTensor& unused : model.weights.unused())
      elements += *element_count(model.checkpoint.find(unused.name)->view->shape);
    std::uint64_t held = 0;
    for (const CheckpointTensor& tensor : model.checkpoint.tensors()) held += *element_count(tensor.view->shape);
    EXPECT_EQ(elements, held) << folder << ": every element is used once or left out";
  }
}

}  // namespace
}  // namespace sluice

#include "architecture/read_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "architecture/config_testing.h"
#include "base/error.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using testing::ConfigText;
using ::testing::Contains;
using testing::dense_config;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::moe_config;
using testing::next_config;
using testing::wrapped;

constexpr auto kLinear = LayerKind::linear_attention;
constexpr auto kFull = LayerKind::full_attention;

std::string error_of(const ConfigText& config) {
  try {
    config.read();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("config.json"));
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << config.text();
  return {};
}

std::string json_string(std::string_view text) { return fmt::format("\"{}\"", text); }

TEST(ReadConfig, ReadsEverySizeOfADenseModel) {
  const HybridConfig c = dense_config().read();
  EXPECT_EQ(c.model_type, "qwen3_5_text");
  EXPECT_EQ(c.family, "qwen3_5");
  EXPECT_EQ(c.layers, 4);
  EXPECT_EQ(c.hidden, 64);
  EXPECT_EQ(c.intermediate, 96);
  EXPECT_EQ(c.vocab, 320);
  EXPECT_EQ(c.max_positions, 512);
  EXPECT_EQ(c.heads, 4);
  EXPECT_EQ(c.kv_heads, 2);
  EXPECT_EQ(c.head_dim, 32);
  EXPECT_EQ(c.key_dim(), 32);
  EXPECT_EQ(c.value_dim(), 96);
  EXPECT_EQ(c.conv_dim(), 160);
  EXPECT_EQ(c.conv_kernel, 4);
  EXPECT_EQ(c.rms_eps, 1e-6);
  EXPECT_EQ(c.activation, Activation::silu);
  EXPECT_EQ(c.output_gate, OutputGateActivation::silu);
  EXPECT_FALSE(c.tied || c.attention_bias || c.has_vision || c.moe);
  EXPECT_THAT(c.layer_kinds, ElementsAre(kLinear, kLinear, kLinear, kFull));
  EXPECT_THAT(c.layers_of(kLinear), ElementsAre(0, 1, 2));
  EXPECT_THAT(c.notices, IsEmpty());
}

TEST(ReadConfig, KnowsEveryModelTypeFlatAndNested) {
  for (const std::string type : {"qwen3_5", "qwen3_5_text"}) {
    EXPECT_EQ(dense_config().with("model_type", json_string(type)).read().family, "qwen3_5");
    EXPECT_EQ(wrapped(dense_config().with("model_type", json_string(type)), "qwen3_5").read().family, "qwen3_5");
  }
  for (const std::string type : {"qwen3_5_moe", "qwen3_5_moe_text"}) {
    EXPECT_EQ(moe_config().with("model_type", json_string(type)).read().family, "qwen3_5_moe");
  }
  const HybridConfig wrapper = wrapped(moe_config(), "qwen3_5_moe").read();
  EXPECT_EQ(wrapper.model_type, "qwen3_5_moe_text");
  EXPECT_TRUE(wrapper.has_vision);
  EXPECT_EQ(next_config().read().family, "qwen3_next");
  EXPECT_EQ(wrapped(dense_config().without("model_type"), "qwen3_5").read().family, "qwen3_5");
}

TEST(ReadConfig, FailsClosedOnUnknownModelTypesListingTheKnown) {
  for (const std::string type : {"qwen9_hybrid", "qwen3", "llama", "", "QWEN3_5", "qwen3_5 "}) {
    EXPECT_THAT(
        error_of(dense_config().with("model_type", json_string(type))),
        AllOf(HasSubstr("model_type \"" + type + "\""), HasSubstr("qwen3_next"), HasSubstr("qwen3_5_moe_text")));
  }
  EXPECT_THAT(error_of(dense_config().with("model_type", "\"qwen4_exp\"")),
              AllOf(HasSubstr("qwen4_exp"), HasSubstr("refused"), HasSubstr("indexer")));
  EXPECT_THAT(error_of(dense_config().without("model_type")), AllOf(HasSubstr("model_type"), HasSubstr("missing")));
  EXPECT_THAT(error_of(dense_config().with("model_type", "7")), AllOf(HasSubstr("model_type"), HasSubstr("integer")));
  EXPECT_THAT(error_of(wrapped(dense_config(), "qwen9_vl")), HasSubstr("qwen9_vl"));
  EXPECT_THAT(error_of(wrapped(dense_config(), "qwen3_5_moe")),
              AllOf(HasSubstr("qwen3_5_moe"), HasSubstr("one family")));
  EXPECT_THAT(error_of(wrapped(dense_config().with("model_type", "\"x\""), "qwen3_5")), HasSubstr("text_config"));
}

TEST(ReadConfig, RefusesWhatIsNoConfig) {
  for (const std::string text : {"[]", "1", "\"x\"", "null"}) {
    EXPECT_THROW(config_from_json(parse_json(text, "config.json"), "config.json"), Error) << text;
  }
  EXPECT_THAT(error_of(ConfigText({{"model_type", "\"qwen3_5\""}, {"text_config", "[]"}})),
              AllOf(HasSubstr("text_config"), HasSubstr("array")));
  EXPECT_THAT(error_of(ConfigText(std::map<std::string, std::string>{{"model_type", "\"qwen3_5\""}})),
              HasSubstr("num_hidden_layers is missing"));
}

TEST(ReadConfig, NeverGuessesASize) {
  for (const std::string key : {"num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size",
                                "max_position_embeddings", "num_attention_heads", "num_key_value_heads", "head_dim"}) {
    EXPECT_THAT(error_of(dense_config().without(key)), AllOf(HasSubstr(key), HasSubstr("missing"))) << key;
    EXPECT_THAT(error_of(dense_config().with(key, "null")), AllOf(HasSubstr(key), HasSubstr("missing"))) << key;
  }
  for (const std::string key :
       {"num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"}) {
    EXPECT_THAT(error_of(moe_config().without(key)), AllOf(HasSubstr(key), HasSubstr("missing"))) << key;
    EXPECT_THAT(error_of(next_config().without(key)), AllOf(HasSubstr(key), HasSubstr("missing"))) << key;
  }
}

TEST(ReadConfig, RefusesSizesOfAWrongTypeOrRange) {
  const std::vector<std::string> sizes{"num_hidden_layers",
                                       "hidden_size",
                                       "intermediate_size",
                                       "max_position_embeddings",
                                       "num_attention_heads",
                                       "num_key_value_heads",
                                       "head_dim",
                                       "linear_num_key_heads",
                                       "linear_num_value_heads",
                                       "linear_key_head_dim",
                                       "linear_value_head_dim",
                                       "linear_conv_kernel_dim",
                                       "vocab_size"};
  for (const std::string& key : sizes) {
    for (const std::string value : {"\"16\"", "16.0", "[16]", "{}", "true", "0", "-1", "-9223372036854775808",
                                    "9223372036854775807", "18446744073709551615", "1e30"}) {
      EXPECT_THAT(error_of(dense_config().with(key, value)), HasSubstr("config.json: " + key)) << value;
    }
  }
  for (const std::string key : {"num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"}) {
    for (const std::string value : {"\"2\"", "0", "-1", "9223372036854775807", "2.5"}) {
      EXPECT_THAT(error_of(moe_config().with(key, value)), HasSubstr("config.json: " + key)) << value;
    }
  }
  EXPECT_THAT(error_of(moe_config().with("num_experts", "-1")), HasSubstr("num_experts"));
  EXPECT_THAT(error_of(moe_config().with("num_experts_per_tok", "9")),
              AllOf(HasSubstr("num_experts_per_tok"), HasSubstr("num_experts 8")));
  EXPECT_THAT(error_of(moe_config().with("num_experts", "65536").with("num_hidden_layers", "4096")),
              HasSubstr("num_experts"));
}

TEST(ReadConfig, AcceptsAHugeVocabularyForTheShapesToRefuse) {
  EXPECT_EQ(dense_config().with("vocab_size", "1099511627776").read().vocab, std::int64_t{1} << 40);
}

TEST(ReadConfig, RefusesHeadsThatDoNotDivide) {
  EXPECT_THAT(error_of(dense_config().with("num_key_value_heads", "3")),
              AllOf(HasSubstr("num_attention_heads 4"), HasSubstr("num_key_value_heads 3")));
  EXPECT_THAT(error_of(dense_config().with("num_key_value_heads", "8")), HasSubstr("num_key_value_heads 8"));
  EXPECT_THAT(error_of(dense_config().with("linear_num_value_heads", "5")),
              AllOf(HasSubstr("linear_num_value_heads 5"), HasSubstr("linear_num_key_heads 2")));
  EXPECT_THAT(error_of(dense_config().with("linear_num_key_heads", "8")), HasSubstr("linear_num_key_heads 8"));
}

TEST(ReadConfig, UsesTransformersDefaultsForTheLinearSizesWithANotice) {
  const HybridConfig c = dense_config()
                             .without("linear_num_key_heads")
                             .without("linear_num_value_heads")
                             .without("linear_key_head_dim")
                             .without("linear_value_head_dim")
                             .without("linear_conv_kernel_dim")
                             .without("rms_norm_eps")
                             .read();
  EXPECT_EQ(c.linear_k_heads, 16);
  EXPECT_EQ(c.linear_v_heads, 32);
  EXPECT_EQ(c.linear_k_dim, 128);
  EXPECT_EQ(c.linear_v_dim, 128);
  EXPECT_EQ(c.conv_kernel, 4);
  EXPECT_EQ(c.rms_eps, 1e-6);
  EXPECT_THAT(c.notices, ElementsAre(AllOf(HasSubstr("linear_num_key_heads 16"), HasSubstr("rms_norm_eps"))));
}

TEST(ReadConfig, TakesAnyPatternOfLayers) {
  const auto kinds = [](const std::string& list) {
    return dense_config().with("layer_types", list).without("full_attention_interval").read().layer_kinds;
  };
  EXPECT_THAT(kinds(R"(["full_attention","linear_attention","full_attention","full_attention"])"),
              ElementsAre(kFull, kLinear, kFull, kFull));
  EXPECT_THAT(kinds(R"(["full_attention","full_attention","full_attention","full_attention"])"),
              ::testing::Each(kFull));
  EXPECT_THAT(kinds(R"(["linear_attention","linear_attention","linear_attention","linear_attention"])"),
              ::testing::Each(kLinear));
  EXPECT_THAT(dense_config().with("full_attention_interval", "1").read().layer_kinds, ::testing::Each(kFull));
  EXPECT_THAT(dense_config().with("full_attention_interval", "2").read().layer_kinds,
              ElementsAre(kLinear, kFull, kLinear, kFull));
  EXPECT_THAT(dense_config().with("full_attention_interval", "9").read().layer_kinds, ::testing::Each(kLinear));
}

TEST(ReadConfig, SaysWhenTheLayerPatternIsADefaultOrContradicted) {
  const HybridConfig absent = dense_config().without("full_attention_interval").read();
  EXPECT_THAT(absent.layer_kinds, ElementsAre(kLinear, kLinear, kLinear, kFull));
  EXPECT_THAT(absent.notices,
              ElementsAre(AllOf(HasSubstr("layer_types"), HasSubstr("full_attention_interval"), HasSubstr("default"))));
  const HybridConfig both =
      dense_config()
          .with("layer_types", R"(["full_attention","linear_attention","linear_attention","linear_attention"])")
          .read();
  EXPECT_THAT(both.layers_of(kFull), ElementsAre(0));
  EXPECT_THAT(both.notices,
              ElementsAre(AllOf(HasSubstr("full_attention_interval 4"), HasSubstr("layer_types decides"))));
}

TEST(ReadConfig, RefusesBrokenLayerPatterns) {
  for (const std::string value : {"0", "-1", "-4", "2.5", "\"4\""}) {
    EXPECT_THAT(error_of(dense_config().with("full_attention_interval", value)),
                AllOf(HasSubstr("full_attention_interval"), HasSubstr(value)));
  }
  EXPECT_THAT(error_of(dense_config().with("layer_types", R"(["full_attention"])")),
              AllOf(HasSubstr("layer_types has 1"), HasSubstr("num_hidden_layers is 4")));
  EXPECT_THAT(error_of(dense_config().with("layer_types", "[]")), HasSubstr("layer_types has 0"));
  EXPECT_THAT(error_of(dense_config()
                           .with("num_hidden_layers", "2")
                           .with("layer_types", R"(["full_attention","full_attention","full_attention"])")),
              AllOf(HasSubstr("3 entries"), HasSubstr("num_hidden_layers is 2")));
  const std::string kind = R"(["full_attention","{}","full_attention","full_attention"])";
  for (const std::string name : {"sliding_attention", "chunked_attention", "mamba", ""}) {
    EXPECT_THAT(error_of(dense_config().with("layer_types", fmt::format(fmt::runtime(kind), name))),
                AllOf(HasSubstr("layer_types[1] \"" + name + "\""), HasSubstr("linear_attention, full_attention")));
  }
  EXPECT_THAT(error_of(dense_config().with("layer_types", "\"full_attention\"")),
              AllOf(HasSubstr("layer_types"), HasSubstr("array")));
  EXPECT_THAT(error_of(dense_config().with("layer_types", "[1,1,1,1]")), HasSubstr("layer_types[0]"));
}

TEST(ReadConfig, HonoursActivationsAndGates) {
  const auto activation = [](const std::string& name) {
    return dense_config().with("hidden_act", json_string(name)).read().activation;
  };
  EXPECT_EQ(activation("silu"), Activation::silu);
  EXPECT_EQ(activation("swish"), Activation::silu);
  EXPECT_EQ(activation("gelu_pytorch_tanh"), Activation::gelu_tanh);
  EXPECT_EQ(activation("gelu_new"), Activation::gelu_tanh);
  EXPECT_EQ(activation("gelu"), Activation::gelu_erf);
  EXPECT_EQ(activation("relu"), Activation::relu);
  for (const std::string name : {"squareplus2", "gelu_fast_2", "mish", "", "SiLU"}) {
    EXPECT_THAT(error_of(dense_config().with("hidden_act", json_string(name))),
                AllOf(HasSubstr("hidden_act \"" + name + "\""), HasSubstr("gelu_pytorch_tanh")));
  }
  const auto gate = [](const std::string& name) {
    return dense_config().with("output_gate_type", json_string(name)).read().output_gate;
  };
  EXPECT_EQ(gate("silu"), OutputGateActivation::silu);
  EXPECT_EQ(gate("swish"), OutputGateActivation::silu);
  EXPECT_EQ(gate("sigmoid"), OutputGateActivation::sigmoid);
  EXPECT_THAT(error_of(dense_config().with("output_gate_type", "\"tanh\"")),
              AllOf(HasSubstr("output_gate_type \"tanh\""), HasSubstr("sigmoid")));
  EXPECT_THAT(error_of(dense_config().with("attn_output_gate", "false")), HasSubstr("attn_output_gate"));
  EXPECT_THAT(dense_config().with("attn_output_gate", "true").read().notices, IsEmpty());
  EXPECT_TRUE(dense_config().with("attention_bias", "true").read().attention_bias);
  EXPECT_THAT(error_of(dense_config().with("attention_bias", "1")), HasSubstr("attention_bias"));
}

TEST(ReadConfig, HonoursTheNormEpsilonAndRefusesSenselessOnes) {
  EXPECT_EQ(dense_config().with("rms_norm_eps", "1e-05").read().rms_eps, 1e-5);
  for (const std::string value : {"0", "-1e-6", "1", "1e300", "\"1e-6\""}) {
    EXPECT_THAT(error_of(dense_config().with("rms_norm_eps", value)), HasSubstr("rms_norm_eps"));
  }
}

TEST(ReadConfig, FindsTheTieAtTheRootOrInTheText) {
  const auto tied = [](const std::string& root, const std::string& text) {
    ConfigText inner = dense_config().without("tie_word_embeddings");
    if (!text.empty()) inner = inner.with("tie_word_embeddings", text);
    ConfigText outer = wrapped(inner, "qwen3_5");
    if (!root.empty()) outer = outer.with("tie_word_embeddings", root);
    return outer.read();
  };
  EXPECT_TRUE(tied("true", "").tied);
  EXPECT_TRUE(tied("", "true").tied);
  EXPECT_TRUE(tied("true", "true").tied);
  EXPECT_FALSE(tied("", "").tied);
  EXPECT_FALSE(tied("false", "").tied);
  EXPECT_FALSE(tied("", "false").tied);
  EXPECT_FALSE(tied("false", "false").tied);
  EXPECT_FALSE(tied("true", "true").tie_disputed);
  for (const auto& [root, text] : {std::pair("true", "false"), std::pair("false", "true")}) {
    EXPECT_TRUE(tied(root, text).tied);
    EXPECT_TRUE(tied(root, text).tie_disputed);
    EXPECT_THAT(tied(root, text).notices, ElementsAre(HasSubstr("tie_word_embeddings")));
  }
  EXPECT_TRUE(dense_config().with("tie_word_embeddings", "true").read().tied);
  EXPECT_FALSE(dense_config().with("tie_word_embeddings", "null").read().tied);
}

TEST(ReadConfig, RefusesASlidingWindowThatIsInEffect) {
  EXPECT_THAT(error_of(dense_config().with("sliding_window", "4096")),
              AllOf(HasSubstr("sliding_window"), HasSubstr("4096")));
  EXPECT_THAT(error_of(dense_config().with("sliding_window", "4096").with("use_sliding_window", "true")),
              HasSubstr("sliding_window"));
  EXPECT_THAT(error_of(dense_config().with("use_sliding_window", "true")), HasSubstr("use_sliding_window"));
  EXPECT_THAT(dense_config().with("sliding_window", "4096").with("use_sliding_window", "false").read().notices,
              IsEmpty());
  EXPECT_THAT(dense_config().with("sliding_window", "null").with("max_window_layers", "28").read().notices, IsEmpty());
}

TEST(ReadConfig, RefusesQuantisedCheckpointsByName) {
  const std::string quantized = R"({"quant_method":"fp8","weight_block_size":[128,128]})";
  EXPECT_THAT(error_of(dense_config().with("quantization_config", quantized)),
              AllOf(HasSubstr("quantization_config"), HasSubstr("fp8")));
  EXPECT_THAT(error_of(wrapped(dense_config(), "qwen3_5").with("quantization_config", quantized)),
              HasSubstr("quantization_config"));
  EXPECT_THAT(error_of(wrapped(dense_config().with("quantization_config", quantized), "qwen3_5")),
              HasSubstr("text_config: quantization_config"));
  EXPECT_THAT(error_of(dense_config().with("compression_config", quantized)), HasSubstr("compression_config"));
  EXPECT_THAT(error_of(wrapped(dense_config(), "qwen3_5").with("quantization", R"({"group_size":64,"bits":4})")),
              HasSubstr("config.json: quantization"));
  EXPECT_THAT(dense_config().with("quantization_config", "null").read().notices, IsEmpty());
}

TEST(ReadConfig, ReadsWhichLayersHaveExperts) {
  const HybridConfig all = next_config().read();
  EXPECT_EQ(all.moe->experts, 8);
  EXPECT_EQ(all.moe->experts_per_token, 2);
  EXPECT_EQ(all.moe->intermediate, 40);
  EXPECT_EQ(all.moe->shared_intermediate, 48);
  EXPECT_TRUE(all.moe->normalize_top_k);
  EXPECT_EQ(all.intermediate, 0);
  EXPECT_THAT(all.moe_layers, ElementsAre(true, true, true, true));
  const ConfigText mixed = next_config().with("intermediate_size", "80");
  EXPECT_THAT(mixed.with("decoder_sparse_step", "2").read().moe_layers, ElementsAre(false, true, false, true));
  EXPECT_THAT(mixed.with("mlp_only_layers", "[0,3]").read().moe_layers, ElementsAre(false, true, true, false));
  EXPECT_THAT(mixed.with("decoder_sparse_step", "2").with("mlp_only_layers", "[1]").read().moe_layers,
              ElementsAre(false, false, false, true));
  EXPECT_EQ(mixed.with("mlp_only_layers", "[0]").read().intermediate, 80);
  const HybridConfig none = mixed.with("num_experts", "0").read();
  EXPECT_FALSE(none.moe);
  EXPECT_THAT(none.moe_layers, ElementsAre(false, false, false, false));
  EXPECT_THAT(error_of(next_config().with("mlp_only_layers", "[0]")),
              AllOf(HasSubstr("intermediate_size"), HasSubstr("missing")));
  EXPECT_THAT(error_of(mixed.with("mlp_only_layers", "[4]")),
              AllOf(HasSubstr("mlp_only_layers"), HasSubstr("layer 4"), HasSubstr("num_hidden_layers is 4")));
  EXPECT_THAT(error_of(mixed.with("mlp_only_layers", "[-1]")), HasSubstr("mlp_only_layers"));
  EXPECT_THAT(error_of(mixed.with("mlp_only_layers", "0")), HasSubstr("mlp_only_layers"));
  EXPECT_THAT(error_of(mixed.with("decoder_sparse_step", "0")), HasSubstr("decoder_sparse_step"));
}

TEST(ReadConfig, HonoursTopKNormalisationPerFamily) {
  EXPECT_FALSE(next_config().with("norm_topk_prob", "false").read().moe->normalize_top_k);
  EXPECT_TRUE(next_config().without("norm_topk_prob").read().moe->normalize_top_k);
  EXPECT_TRUE(moe_config().read().moe->normalize_top_k);
  EXPECT_THAT(error_of(moe_config().with("norm_topk_prob", "false")),
              AllOf(HasSubstr("norm_topk_prob"), HasSubstr("qwen3_5_moe_text")));
  EXPECT_THAT(error_of(dense_config().with("num_experts", "8")),
              AllOf(HasSubstr("num_experts is 8"), HasSubstr("no experts")));
}

TEST(ReadConfig, ReadsTokenIdsFromTextThenRoot) {
  const HybridConfig flat =
      dense_config().with("eos_token_id", "[1,2]").with("bos_token_id", "3").with("pad_token_id", "null").read();
  EXPECT_THAT(flat.eos_ids, ElementsAre(1, 2));
  EXPECT_EQ(flat.bos_id, 3);
  EXPECT_FALSE(flat.pad_id);
  const HybridConfig nested = wrapped(dense_config().with("eos_token_id", "5"), "qwen3_5")
                                  .with("eos_token_id", "6")
                                  .with("pad_token_id", "7")
                                  .read();
  EXPECT_THAT(nested.eos_ids, ElementsAre(5));
  EXPECT_EQ(nested.pad_id, 7);
  EXPECT_THAT(dense_config().with("eos_token_id", "320").read().notices,
              ElementsAre(AllOf(HasSubstr("eos_token_id 320"), HasSubstr("vocabulary of 320"))));
  EXPECT_THAT(error_of(dense_config().with("eos_token_id", "\"x\"")), HasSubstr("eos_token_id"));
  EXPECT_THAT(error_of(dense_config().with("bos_token_id", "[1,2]")), HasSubstr("bos_token_id"));
}

TEST(ReadConfig, WarnsByNameOfKeysNobodyKnows) {
  EXPECT_THAT(dense_config().with("attn_logit_softcapping", "30.0").read().notices,
              ElementsAre(AllOf(HasSubstr("attn_logit_softcapping (30.0)"), HasSubstr("qwen3_5_text"))));
  EXPECT_THAT(dense_config().with("logit_scale", "null").read().notices, IsEmpty());
  EXPECT_THAT(wrapped(dense_config(), "qwen3_5").with("rms_norm_eps", "1e-5").read().notices,
              ElementsAre(AllOf(HasSubstr("rms_norm_eps"), HasSubstr("beside text_config"))));
  const ConfigText harmless = dense_config()
                                  .with("architectures", R"(["Qwen3_5ForCausalLM"])")
                                  .with("dtype", "\"bfloat16\"")
                                  .with("torch_dtype", "\"bfloat16\"")
                                  .with("transformers_version", "\"5.24.0\"")
                                  .with("use_cache", "true")
                                  .with("initializer_range", "0.02")
                                  .with("attention_dropout", "0.0")
                                  .with("mamba_ssm_dtype", "\"float32\"")
                                  .with("mlp_only_layers", "[]")
                                  .with("image_token_id", "248056")
                                  .with("mtp_num_hidden_layers", "1")
                                  .with("mtp_use_dedicated_embeddings", "false");
  EXPECT_THAT(harmless.read().notices, IsEmpty());
  EXPECT_EQ(harmless.read().mtp_layers, 1);
  EXPECT_THAT(dense_config().with("mamba_ssm_dtype", "\"bfloat16\"").read().notices,
              ElementsAre(HasSubstr("mamba_ssm_dtype")));
}

TEST(ReadConfig, ReadsEveryGoldenWithoutAskingForMore) {
  int count = 0;
  for (const auto& item : std::filesystem::directory_iterator(std::string(SLUICE_SOURCE_DIR) + "/tests/data/goldens")) {
    if (!std::filesystem::exists(item.path() / "meta.json")) continue;
    const HybridConfig config = read_config(item.path());
    EXPECT_EQ(static_cast<std::int64_t>(config.layer_kinds.size()), config.layers);
    for (const std::string& notice : config.notices)
      EXPECT_THAT(notice, ::testing::Not(HasSubstr("is not known"))) << item.path();
    ++count;
  }
  EXPECT_EQ(count, 16);
}

TEST(ReadConfig, NamesAFileThatIsAbsentOrAFolder) {
  EXPECT_THROW(
      {
        try {
          read_config("/nonexistent");
        } catch (const Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("/nonexistent/config.json"));
          throw;
        }
      },
      Error);
}

}  // namespace
}  // namespace sluice

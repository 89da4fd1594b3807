// The malformed checkpoints of tests/data/goldens: each is one sample of its kind; the kinds have tests of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint_testing.h"
#include "weights/value_scan.h"
#include "weights/weight_source.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

const std::filesystem::path kFolder = std::string(SLUICE_SOURCE_DIR) + "/tests/data/goldens/malformed";

struct Malformed {
  std::string folder;
  std::vector<std::string> named;  // what the one-line message names
};

// Refused before any work.
const std::vector<Malformed> kRefused{
    {"file-empty", {"model.safetensors", "too short for the 8-byte header length"}},
    {"truncated-header", {"model.safetensors", "header length is 2776", "192 bytes"}},
    {"truncated-data",
     {"model.safetensors", "model.layers.1.self_attn.q_proj.weight", "8656 bytes", "the file has 7656"}},
    {"header-length-max", {"model.safetensors", "header length", "18446744073709551615"}},
    {"header-length-zero", {"model.safetensors", "header is empty"}},
    {"header-not-json", {"model.safetensors", "at byte 2"}},
    {"header-not-object", {"model.safetensors", "header must be an object"}},
    {"offsets-overlap",
     {"model.safetensors", "self_attn.q_proj.weight", "[7344, 8368]", "self_attn.v_proj.weight", "[8352, 8608]"}},
    {"offsets-hole", {"model.safetensors", "[8368, 8400]", "no holes"}},
    {"offsets-out-of-range", {"model.safetensors", "self_attn.v_proj.weight", "1099511628032", "8656"}},
    {"size-mismatch", {"model.safetensors", "self_attn.v_proj.weight", "[9, 16]", "BF16", "288", "256"}},
    {"shape-overflow", {"model.safetensors", "self_attn.v_proj.weight", "[4294967296, 4294967296, 128]"}},
    {"dtype-integer", {"self_attn.q_proj.weight", "I16", "BF16, F16, F32"}},
    {"shape-transposed", {"self_attn.q_proj.weight", "[16, 32]", "[32, 16]"}},
    {"shape-zero", {"self_attn.k_norm.weight", "[0]", "[8]"}},
    {"tensor-missing-head", {"lm_head.weight", "tie_word_embeddings"}},
    {"tensor-extra-layer", {"model.layers.2.mlp.down_proj.weight", "num_hidden_layers is 2"}},
    {"bias-unexpected", {"model.layers.1.self_attn.q_proj.bias", "attention_bias is false"}},
    {"index-wrong-shard", {"model.layers.1.self_attn.k_norm.weight", "model-00001-of-00002.safetensors"}},
    {"index-tensor-unlisted", {"model.layers.1.self_attn.k_norm.weight", "model-00002-of-00002.safetensors"}},
    {"weights-absent", {"weights-absent", "model.safetensors", "model.safetensors.index.json"}},
    {"config-not-json", {"config.json", "at byte 468"}},
    {"config-model-type-unknown", {"qwen9_hybrid", "qwen3_next", "qwen3_5", "qwen3_5_moe_text"}},
    {"config-field-type", {"config.json", "hidden_size", "string"}},
    {"config-huge", {"vocab_size", "model.embed_tokens.weight", "[32, 16]", "1099511627776"}},
    {"config-layer-types-length", {"layer_types has 3", "num_hidden_layers is 2"}},
    {"config-layer-types-swapped", {"layer 0", "full_attention", "model.layers.0.self_attn.q_proj.weight"}},
    {"config-kv-heads-zero", {"num_key_value_heads is 0"}},
    {"config-mrope-section-sum", {"mrope_section [11,11,10]", "32", "rotary dimension is 2"}},
    {"config-rope-type-unknown", {"rope_type \"magic\"", "default, linear, yarn"}},
    {"config-act-unknown", {"hidden_act \"squareplus2\"", "silu", "gelu_pytorch_tanh"}},
};

// Read, with a notice or a finding that names the thing.
const std::vector<Malformed> kWarned{
    {"inf-weight", {"model.norm.weight", "element 0 is inf"}},
    {"config-unknown-maths-key", {"attn_logit_softcapping (30.0)"}},
    {"config-tied-with-head", {"lm_head.weight", "tie_word_embeddings"}},
};

TEST(Malformed, EachOfTheRefusedGivesItsOneLine) {
  for (const Malformed& sample : kRefused) {
    const std::string message = testing::error_of([&] { open_model(kFolder / sample.folder); });
    for (const std::string& name : sample.named) EXPECT_THAT(message, HasSubstr(name)) << sample.folder;
  }
}

TEST(Malformed, EachOfTheWarnedNamesWhatIsWrong) {
  ThreadPool pool(1);
  Progress progress;
  for (const Malformed& sample : kWarned) {
    const ModelSource model = open_model(kFolder / sample.folder);
    std::string all;
    for (const std::string& notice : model.notices()) all += notice + "\n";
    for (const ValueFinding& finding : scan_values(model, ScanScope::small_tensors, pool, progress))
      all += finding.message + "\n";
    for (const std::string& name : sample.named) EXPECT_THAT(all, HasSubstr(name)) << sample.folder;
  }
}

TEST(Malformed, NoFolderIsForgotten) {
  std::size_t folders = 0;
  for (const auto& item : std::filesystem::directory_iterator(kFolder))
    folders += item.is_directory() && item.path().filename() != "ok";
  EXPECT_EQ(folders, kRefused.size() + kWarned.size());
  EXPECT_NO_THROW(open_model(kFolder / "ok"));
}

}  // namespace
}  // namespace sluice

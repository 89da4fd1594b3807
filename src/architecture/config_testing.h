// For tests: configs of each family with single keys changed, removed or moved.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "architecture/read_config.h"

namespace sluice::testing {

// Keys and their raw JSON texts.
class ConfigText {
 public:
  explicit ConfigText(std::map<std::string, std::string> keys) : keys_(std::move(keys)) {}
  ConfigText with(const std::string& key, const std::string& json) const {
    ConfigText copy = *this;
    copy.keys_[key] = json;
    return copy;
  }
  ConfigText without(const std::string& key) const {
    ConfigText copy = *this;
    copy.keys_.erase(key);
    return copy;
  }
  std::string text() const {
    std::string out = "{";
    for (const auto& [key, json] : keys_) out += fmt::format("{}\"{}\":{}", out.size() > 1 ? "," : "", key, json);
    return out + "}";
  }
  HybridConfig read() const { return config_from_json(parse_json(text(), "config.json"), "config.json"); }

 private:
  std::map<std::string, std::string> keys_;
};

// Four layers, small, every key that a released config of the family states.
inline ConfigText dense_config() {
  return ConfigText(
      {{"model_type", R"("qwen3_5_text")"},
       {"num_hidden_layers", "4"},
       {"hidden_size", "64"},
       {"intermediate_size", "96"},
       {"vocab_size", "320"},
       {"max_position_embeddings", "512"},
       {"num_attention_heads", "4"},
       {"num_key_value_heads", "2"},
       {"head_dim", "32"},
       {"linear_num_key_heads", "2"},
       {"linear_num_value_heads", "4"},
       {"linear_key_head_dim", "16"},
       {"linear_value_head_dim", "24"},
       {"linear_conv_kernel_dim", "4"},
       {"rms_norm_eps", "1e-06"},
       {"hidden_act", R"("silu")"},
       {"full_attention_interval", "4"},
       {"tie_word_embeddings", "false"},
       {"rope_parameters", R"({"rope_type":"default","rope_theta":1000000,"partial_rotary_factor":0.25})"}});
}

inline ConfigText with_experts(const ConfigText& config) {
  return config.without("intermediate_size")
      .with("num_experts", "8")
      .with("num_experts_per_tok", "2")
      .with("moe_intermediate_size", "40")
      .with("shared_expert_intermediate_size", "48");
}

inline ConfigText moe_config() { return with_experts(dense_config()).with("model_type", R"("qwen3_5_moe_text")"); }

inline ConfigText next_config() {
  return with_experts(dense_config()).with("model_type", R"("qwen3_next")").with("norm_topk_prob", "true");
}

// The same as the text part of a vision-language wrapper.
inline ConfigText wrapped(const ConfigText& text, std::string_view model_type) {
  return ConfigText({{"model_type", fmt::format("\"{}\"", model_type)},
                     {"text_config", text.text()},
                     {"vision_config", R"({"depth":1})"}});
}

}  // namespace sluice::testing

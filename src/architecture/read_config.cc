#include "architecture/read_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "architecture/config_keys.h"
#include "architecture/rope.h"
#include "architecture/weight_table.h"
#include "base/error.h"

namespace sluice {
namespace {

// Beyond any model, and small enough that products of two of them fit 63 bits. A vocabulary may claim more: it is held
// against the embedding's shape.
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxHeads = 1 << 16;
constexpr std::int64_t kMaxHeadDim = 1 << 16;
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 31;
constexpr std::int64_t kMaxVocab = std::int64_t{1} << 48;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 40;
constexpr std::int64_t kMaxConvKernel = 1024;
constexpr std::int64_t kMaxExperts = 1 << 16;
constexpr std::int64_t kMaxExpertsInAll = 1 << 18;  // bounds the weight table, which names each expert

// Model types that are known and not supported, with the reason.
constexpr std::array<std::pair<std::string_view, std::string_view>, 1> kRefusedTypes{
    {{"qwen4_exp", "its indexer attention, hyper-connections and n-gram embeddings are not supported yet"}}};

class ConfigReader {
 public:
  ConfigReader(const Json& json, std::string_view source) : root_(json, std::string(source)) {
    if (const Json* nested = root_.find("text_config")) nested_.emplace(*nested, root_.path("text_config"));
  }

  HybridConfig read() {
    refuse_quantized();
    read_model_type();
    read_sizes();
    read_linear_sizes();
    read_maths();
    read_layer_kinds();
    read_experts();
    refuse_sliding_window();
    config_.rope = read_rope(text(), config_.head_dim, config_.max_positions, config_.notices);
    read_tie();
    read_token_ids();
    read_extras();
    report_defaults();
    report_unknown();
    return std::move(config_);
  }

 private:
  ConfigKeys& text() { return nested_ ? *nested_ : root_; }

  void refuse_quantized() {
    for (ConfigKeys* keys : {&root_, &text()}) {
      for (const std::string_view key : {"quantization_config", "compression_config", "quantization"}) {
        const Json* value = keys->find(key);
        if (value == nullptr || (value->is_object() && value->as_object("").empty())) continue;
        const Json* method = value->find("quant_method");
        fail("{}: a quantised checkpoint{} is not supported; export from the bf16, fp16 or fp32 original",
             keys->path(key), method == nullptr ? "" : fmt::format(" (quant_method {})", shown(*method)));
      }
    }
  }

  const Family& known_family(const ConfigKeys& keys, const std::string& type) const {
    if (const Family* family = find_family(type)) return *family;
    std::vector<std::string_view> known;
    for (const Family* family : families())
      known.insert(known.end(), family->model_types.begin(), family->model_types.end());
    std::string reason = "is not known";
    for (const auto& [refused, why] : kRefusedTypes) {
      if (refused == type) reason = fmt::format("is refused: {}", why);
    }
    fail("{} \"{}\" {}; known are {}", keys.path("model_type"), type, reason, fmt::join(known, ", "));
  }

  void read_model_type() {
    const auto at_root = root_.text("model_type");
    const auto in_text = nested_ ? nested_->text("model_type") : std::nullopt;
    if (!at_root && !in_text) fail("{} is missing; Sluice cannot tell what model this is", root_.path("model_type"));
    family_ = in_text ? &known_family(*nested_, *in_text) : &known_family(root_, *at_root);
    if (at_root && &known_family(root_, *at_root) != family_) {
      fail("{} is \"{}\", but {} is \"{}\"; expected two of one family", root_.path("model_type"), *at_root,
           nested_->path("model_type"), *in_text);
    }
    config_.model_type = in_text ? *in_text : *at_root;
    config_.family = family_->name;
  }

  void read_sizes() {
    ConfigKeys& keys = text();
    config_.layers = keys.size("num_hidden_layers", kMaxLayers);
    config_.hidden = keys.size("hidden_size", kMaxWidth);
    config_.vocab = keys.size("vocab_size", kMaxVocab);
    config_.max_positions = keys.size("max_position_embeddings", kMaxPositions);
    config_.heads = keys.size("num_attention_heads", kMaxHeads);
    config_.kv_heads = keys.size("num_key_value_heads", kMaxHeads);
    config_.head_dim = keys.size("head_dim", kMaxHeadDim);
    if (config_.heads % config_.kv_heads != 0) {
      fail("{}: num_attention_heads {} is no multiple of num_key_value_heads {}", keys.where(), config_.heads,
           config_.kv_heads);
    }
  }

  // transformers' default for a key that is absent; one notice names them all.
  std::int64_t or_default(std::string_view key, std::int64_t limit, std::int64_t fallback) {
    if (const auto value = text().integer(key, 1, limit)) return *value;
    defaults_.push_back(fmt::format("{} {}", key, fallback));
    return fallback;
  }

  void read_linear_sizes() {
    config_.linear_k_heads = or_default("linear_num_key_heads", kMaxHeads, 16);
    config_.linear_v_heads = or_default("linear_num_value_heads", kMaxHeads, 32);
    config_.linear_k_dim = or_default("linear_key_head_dim", kMaxHeadDim, 128);
    config_.linear_v_dim = or_default("linear_value_head_dim", kMaxHeadDim, 128);
    config_.conv_kernel = or_default("linear_conv_kernel_dim", kMaxConvKernel, 4);
    if (config_.linear_v_heads % config_.linear_k_heads != 0) {
      fail("{}: linear_num_value_heads {} is no multiple of linear_num_key_heads {}", text().where(),
           config_.linear_v_heads, config_.linear_k_heads);
    }
  }

  void read_maths() {
    ConfigKeys& keys = text();
    const auto eps = keys.number("rms_norm_eps");
    if (!eps) defaults_.push_back("rms_norm_eps 1e-06");
    config_.rms_eps = eps.value_or(1e-6);
    if (!(config_.rms_eps > 0 && config_.rms_eps < 1)) {
      fail("{} is {}; expected a number above 0 and below 1", keys.path("rms_norm_eps"), config_.rms_eps);
    }
    config_.activation = read_activation();
    config_.output_gate = read_output_gate();
    if (keys.flag("attn_output_gate").value_or(true) == false) {
      fail("{} is false; attention without its output gate is not supported", keys.path("attn_output_gate"));
    }
    config_.attention_bias = keys.flag("attention_bias").value_or(false);
  }

  Activation read_activation() {
    const auto name = text().text("hidden_act");
    if (!name) defaults_.push_back("hidden_act \"silu\"");
    if (!name || *name == "silu" || *name == "swish") return Activation::silu;
    if (*name == "gelu_pytorch_tanh" || *name == "gelu_new") return Activation::gelu_tanh;
    if (*name == "gelu" || *name == "gelu_python") return Activation::gelu_erf;
    if (*name == "relu") return Activation::relu;
    fail("{} \"{}\" is not supported; supported are silu (swish), gelu_pytorch_tanh (gelu_new), gelu, relu",
         text().path("hidden_act"), *name);
  }

  OutputGateActivation read_output_gate() {
    const auto name = text().text("output_gate_type");
    if (!name || *name == "silu" || *name == "swish") return OutputGateActivation::silu;
    if (*name == "sigmoid") return OutputGateActivation::sigmoid;
    fail("{} \"{}\" is not supported; supported are silu (swish), sigmoid", text().path("output_gate_type"), *name);
  }

  void read_layer_kinds() {
    ConfigKeys& keys = text();
    const auto interval = keys.integer("full_attention_interval", 1, std::numeric_limits<std::int64_t>::max());
    const std::vector<LayerKind> by_interval = kinds_by_interval(interval.value_or(4));
    const Json* types = keys.find("layer_types");
    if (types == nullptr) {
      if (!interval) {
        config_.notices.push_back(
            fmt::format("{} has neither layer_types nor full_attention_interval; every fourth layer is taken for "
                        "full attention, transformers' default",
                        keys.where()));
      }
      config_.layer_kinds = by_interval;
      return;
    }
    const auto& names = types->as_array(keys.path("layer_types"));
    if (static_cast<std::int64_t>(names.size()) != config_.layers) {
      fail("{} has {} entries, but num_hidden_layers is {}", keys.path("layer_types"), names.size(), config_.layers);
    }
    for (std::size_t i = 0; i < names.size(); ++i) config_.layer_kinds.push_back(kind_of(names[i], i));
    if (interval && config_.layer_kinds != by_interval) {
      config_.notices.push_back(fmt::format("{} contradicts full_attention_interval {}; layer_types decides",
                                            keys.path("layer_types"), *interval));
    }
  }

  std::vector<LayerKind> kinds_by_interval(std::int64_t interval) const {
    std::vector<LayerKind> kinds;
    for (std::int64_t i = 0; i < config_.layers; ++i) {
      kinds.push_back((i + 1) % interval == 0 ? LayerKind::full_attention : LayerKind::linear_attention);
    }
    return kinds;
  }

  LayerKind kind_of(const Json& name, std::size_t layer) {
    const std::string path = fmt::format("{}[{}]", text().path("layer_types"), layer);
    const std::string& kind = name.as_string(path);
    if (kind == "linear_attention") return LayerKind::linear_attention;
    if (kind == "full_attention") return LayerKind::full_attention;
    fail("{} \"{}\" is not supported; supported are linear_attention, full_attention", path, kind);
  }

  void read_experts() {
    ConfigKeys& keys = text();
    config_.moe_layers.assign(static_cast<std::size_t>(config_.layers), false);
    if (!family_->experts) {
      if (const auto experts = keys.integer("num_experts", 0, kMaxExperts); experts.value_or(0) > 0) {
        fail("{} is {}, but models of type {} have no experts", keys.path("num_experts"), *experts, config_.model_type);
      }
    } else {
      read_moe_layers();
    }
    const bool any = std::find(config_.moe_layers.begin(), config_.moe_layers.end(), true) != config_.moe_layers.end();
    const bool all = std::find(config_.moe_layers.begin(), config_.moe_layers.end(), false) == config_.moe_layers.end();
    if (any) {
      read_moe_sizes();
    } else {  // say nothing without experts, and published dense configs carry some of them
      keys.know({"mlp_only_layers", "decoder_sparse_step", "norm_topk_prob", "num_experts_per_tok",
                 "moe_intermediate_size", "shared_expert_intermediate_size"});
    }
    if (all) {
      keys.know({"intermediate_size"});
    } else {
      config_.intermediate = keys.size("intermediate_size", kMaxWidth);
    }
  }

  // transformers: layer i has experts when it is not in mlp_only_layers and (i + 1) % decoder_sparse_step == 0.
  void read_moe_layers() {
    ConfigKeys& keys = text();
    const auto experts = keys.integer("num_experts", 0, kMaxExperts);
    if (!experts) fail("{} is missing; Sluice guesses no sizes: add it", keys.path("num_experts"));
    const std::int64_t step =
        keys.integer("decoder_sparse_step", 1, std::numeric_limits<std::int64_t>::max()).value_or(1);
    for (std::int64_t i = 0; i < config_.layers; ++i) {
      config_.moe_layers[static_cast<std::size_t>(i)] = *experts > 0 && (i + 1) % step == 0;
    }
    const Json* only = keys.find("mlp_only_layers");
    if (only == nullptr) return;
    const std::string path = keys.path("mlp_only_layers");
    for (const Json& entry : only->as_array(path)) {
      const std::int64_t layer = entry.as_int(path);
      if (layer < 0 || layer >= config_.layers) {
        fail("{} names layer {}, but num_hidden_layers is {}", path, layer, config_.layers);
      }
      config_.moe_layers[static_cast<std::size_t>(layer)] = false;
    }
  }

  void read_moe_sizes() {
    ConfigKeys& keys = text();
    MoeConfig moe;
    moe.experts = keys.size("num_experts", kMaxExperts);
    if (moe.experts * config_.layers > kMaxExpertsInAll) {
      fail("{}: num_experts {} in {} layers is more than the {} experts Sluice reads", keys.where(), moe.experts,
           config_.layers, kMaxExpertsInAll);
    }
    moe.experts_per_token = keys.size("num_experts_per_tok", kMaxExperts);
    if (moe.experts_per_token > moe.experts) {
      fail("{} is {}, more than num_experts {}", keys.path("num_experts_per_tok"), moe.experts_per_token, moe.experts);
    }
    moe.intermediate = keys.size("moe_intermediate_size", kMaxWidth);
    moe.shared_intermediate = keys.size("shared_expert_intermediate_size", kMaxWidth);
    moe.normalize_top_k = keys.flag("norm_topk_prob").value_or(true);
    if (family_->always_normalizes_top_k && !moe.normalize_top_k) {
      fail("{} is false, but models of type {} always divide by the sum of the chosen experts; remove the key",
           keys.path("norm_topk_prob"), config_.model_type);
    }
    config_.moe = moe;
  }

  void refuse_sliding_window() {
    ConfigKeys& keys = text();
    const auto used = keys.flag("use_sliding_window");
    const Json* window = keys.find("sliding_window");
    keys.know({"max_window_layers"});
    if (used ? *used : window != nullptr) {
      fail("{} is in effect ({}); attention over a sliding window is not supported", keys.path("sliding_window"),
           used ? "use_sliding_window is true" : "it is " + shown(*window));
    }
  }

  void read_tie() {
    const auto at_root = root_.flag("tie_word_embeddings");
    const auto in_text = nested_ ? nested_->flag("tie_word_embeddings") : std::nullopt;
    config_.tied = at_root.value_or(false) || in_text.value_or(false);
    config_.tie_disputed = at_root && in_text && *at_root != *in_text;
    if (config_.tie_disputed) {
      config_.notices.push_back(
          fmt::format("{} is {}, but in text_config it is {}; the embedding is used as the output projection",
                      root_.path("tie_word_embeddings"), *at_root, *in_text));
    }
  }

  // The text part's value counts first.
  std::pair<const Json*, std::string> first_of(std::string_view key) {
    const Json* outer = root_.find(key);  // asked for in both, so that it is unknown in neither
    if (const Json* value = text().find(key)) return {value, text().path(key)};
    return {outer, root_.path(key)};
  }

  std::vector<std::int64_t> token_ids(std::string_view key) {
    const auto [value, path] = first_of(key);
    if (value == nullptr) return {};
    std::vector<std::int64_t> ids;
    if (value->is_array()) {
      for (const Json& id : value->as_array(path)) ids.push_back(id.as_int(path));
    } else {
      ids.push_back(value->as_int(path));
    }
    std::erase_if(ids, [&](std::int64_t id) {
      const bool outside = id < 0 || id >= config_.vocab;
      if (outside)
        config_.notices.push_back(
            fmt::format("{} {} is no token of a vocabulary of {}; ignored", path, id, config_.vocab));
      return outside;
    });
    return ids;
  }

  void read_token_ids() {
    const auto one = [&](std::string_view key) -> std::optional<std::int64_t> {
      const auto ids = token_ids(key);
      if (ids.size() > 1) fail("{} has {} entries; expected one token", first_of(key).second, ids.size());
      return ids.empty() ? std::nullopt : std::optional(ids.front());
    };
    config_.bos_id = one("bos_token_id");
    config_.eos_ids = token_ids("eos_token_id");
    config_.pad_id = one("pad_token_id");
  }

  void read_extras() {
    config_.has_vision = root_.find("vision_config") != nullptr;
    for (const std::string_view key : {"mtp_num_hidden_layers", "num_nextn_predict_layers"}) {
      config_.mtp_layers = std::max(config_.mtp_layers, text().integer(key, 0, kMaxLayers).value_or(0));
    }
    const auto state_dtype = text().text("mamba_ssm_dtype");
    if (state_dtype && *state_dtype != "float32") {
      config_.notices.push_back(fmt::format("{} is \"{}\"; Sluice keeps the recurrent state in float32",
                                            text().path("mamba_ssm_dtype"), *state_dtype));
    }
  }

  void report_defaults() {
    if (config_.layers_of(LayerKind::linear_attention).empty()) {
      std::erase_if(defaults_, [](const std::string& entry) { return entry.starts_with("linear_"); });
    }
    if (defaults_.empty()) return;
    config_.notices.push_back(fmt::format("{} leaves out keys; transformers' defaults are used: {}", text().where(),
                                          fmt::join(defaults_, ", ")));
  }

  void report_unknown() {
    for (ConfigKeys* keys : {&root_, &text()}) {
      keys->know({"_attn_implementation",
                  "_name_or_path",
                  "architectures",
                  "attention_dropout",
                  "attn_implementation",
                  "chunk_size_feed_forward",
                  "dtype",
                  "hidden_dropout",
                  "id2label",
                  "image_token_id",
                  "initializer_range",
                  "is_decoder",
                  "is_encoder_decoder",
                  "label2id",
                  "language_model_only",
                  "mtp_use_dedicated_embeddings",
                  "output_attentions",
                  "output_hidden_states",
                  "output_router_logits",
                  "pretraining_tp",
                  "problem_type",
                  "return_dict",
                  "router_aux_loss_coef",
                  "torch_dtype",
                  "torchscript",
                  "transformers_version",
                  "unsloth_fixed",
                  "unsloth_version",
                  "use_cache",
                  "video_token_id",
                  "vision_end_token_id",
                  "vision_start_token_id"});
    }
    if (nested_) {
      for (const auto& [key, value] : root_.unknown()) {
        config_.notices.push_back(
            fmt::format("{} ({}) stands beside text_config and is ignored", root_.path(key), shown(*value)));
      }
    }
    for (const auto& [key, value] : text().unknown()) {
      config_.notices.push_back(fmt::format(
          "{} ({}) is not known for {} and is ignored; should it change what the model computes, the result is wrong",
          text().path(key), shown(*value), config_.model_type));
    }
  }

  ConfigKeys root_;
  std::optional<ConfigKeys> nested_;
  const Family* family_ = nullptr;
  HybridConfig config_;
  std::vector<std::string> defaults_;
};

}  // namespace

std::vector<std::int64_t> HybridConfig::layers_of(LayerKind kind) const {
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < layer_kinds.size(); ++i) {
    if (layer_kinds[i] == kind) out.push_back(static_cast<std::int64_t>(i));
  }
  return out;
}

HybridConfig read_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  return config_from_json(read_json(path, 16u << 20), path.string());
}

HybridConfig config_from_json(const Json& json, std::string_view source) { return ConfigReader(json, source).read(); }

}  // namespace sluice

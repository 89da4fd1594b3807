#include "package/genai_config.h"

#include <algorithm>

#include "base/error.h"

namespace sluice {
namespace {

bool has_state(const GraphInfo& graph, StateKind kind) {
  return std::any_of(graph.states.begin(), graph.states.end(), [&](const StateInfo& s) { return s.kind == kind; });
}

// Layers that hold a state of this kind, ascending, each once.
std::vector<std::int64_t> layers_with(const GraphInfo& graph, StateKind kind) {
  std::vector<std::int64_t> layers;
  for (const StateInfo& state : graph.states) {
    if (state.kind == kind && (layers.empty() || layers.back() != state.layer)) layers.push_back(state.layer);
  }
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  return layers;
}

bool has_port(const std::vector<PortInfo>& ports, std::string_view name) {
  return std::any_of(ports.begin(), ports.end(), [&](const PortInfo& p) { return p.name == name; });
}

Json inputs_json(const Manifest& m) {
  const GraphInfo& graph = m.graphs.front();
  Json out;
  for (const char* name : {"input_ids", "attention_mask", "position_ids", "block_table", "cumulative_sequence_lengths",
                           "past_sequence_lengths", "attention_metadata", "logits_indices"}) {
    if (has_port(graph.inputs, name)) out.set(name, name);
  }
  out.set("past_key_names", "past_key_values.%d.key");
  out.set("past_value_names", "past_key_values.%d.value");
  if (has_state(graph, StateKind::conv)) {
    out.set("past_conv_names", "past_key_values.%d.conv_state");
    out.set("past_recurrent_names", "past_key_values.%d.recurrent_state");
  }
  for (const char* name : {"state_update_capture_count", "state_update_active"}) {
    if (has_port(graph.inputs, name)) out.set(name, name);
  }
  return out;
}

Json outputs_json(const Manifest& m) {
  const GraphInfo& graph = m.graphs.front();
  Json out;
  out.set("logits", "logits");
  out.set("present_key_names", "present.%d.key");
  out.set("present_value_names", "present.%d.value");
  if (has_state(graph, StateKind::conv)) {
    out.set("present_conv_names", "present.%d.conv_state");
    out.set("present_recurrent_names", "present.%d.recurrent_state");
  }
  if (m.state_update_capacity > 0) {
    out.set("state_update_conv_value_names", "state_update.%d.conv_value");
    out.set("state_update_recurrent_capsule_names", "state_update.%d.recurrent_capsule");
  }
  return out;
}

// Which layers hold which state: only packed graphs have groups, and genai wants exactly one paged_kv group.
Json state_groups_json(const Manifest& m) {
  const GraphInfo& graph = m.graphs.front();
  Json::Array groups;
  const auto add = [&](const char* kind, StateKind state) {
    const auto layers = layers_with(graph, state);
    if (layers.empty()) return;
    Json group;
    group.set("kind", kind);
    group.set("layer_ids", Json::array(layers));
    if (m.state_update_capacity > 0 && state != StateKind::paged_kv) {
      Json update;
      update.set("capacity", m.state_update_capacity);
      if (state == StateKind::recurrent) update.set("key_head_count", m.model.linear_k_heads);
      group.set("state_update", std::move(update));
    }
    groups.push_back(std::move(group));
  };
  add("paged_kv", StateKind::paged_kv);
  add("fixed_conv", StateKind::conv);
  add("fixed_recurrent", StateKind::recurrent);
  return Json(std::move(groups));
}

Json session_options_json(const GenaiConfig& config) {
  Json out;
  out.set("log_id", "onnxruntime-genai");
  Json::Array providers;
  if (config.manifest.target == "ort-cuda") {
    // Fixed states are updated in place; a captured graph would replay the update (genai disables it for the same
    // reason).
    Json cuda, options;
    options.set("enable_cuda_graph", "0");
    cuda.set("cuda", std::move(options));
    providers.push_back(std::move(cuda));
  }
  out.set("provider_options", Json(std::move(providers)));
  if (!config.custom_ops_library.empty()) out.set("custom_ops_library", config.custom_ops_library);
  return out;
}

Json decoder_json(const GenaiConfig& config) {
  const Manifest& m = config.manifest;
  Json out;
  out.set("session_options", session_options_json(config));
  out.set("filename", m.graphs.front().file);
  out.set("head_size", m.model.head_dim);
  out.set("hidden_size", m.model.hidden);
  out.set("inputs", inputs_json(m));
  out.set("outputs", outputs_json(m));
  out.set("num_attention_heads", m.model.heads);
  out.set("num_hidden_layers", m.model.layers);
  out.set("num_key_value_heads", m.model.kv_heads);
  if (m.layout == Layout::packed) {
    out.set("state_groups", state_groups_json(m));
    if (m.state_update_capacity > 0) out.set("state_update_capacity", m.state_update_capacity);
  }
  return out;
}

Json model_json(const GenaiConfig& config) {
  const ModelInfo& model = config.manifest.model;
  Json out;
  out.set("bos_token_id", model.bos_id.value_or(1));
  out.set("context_length", model.context_length);
  out.set("decoder", decoder_json(config));
  out.set("eos_token_id", Json::array(model.eos_ids));
  if (model.pad_id) out.set("pad_token_id", *model.pad_id);
  out.set("type", genai_model_type(model.family));
  out.set("vocab_size", model.vocab);
  const auto marker = [&](const char* key, std::optional<std::int64_t> id) {
    if (id) out.set(key, *id);
  };
  marker("bot_token_id", config.markers.begin_tool);
  marker("eot_token_id", config.markers.end_tool);
  marker("bor_token_id", config.markers.begin_reasoning);
  marker("eor_token_id", config.markers.end_reasoning);
  return out;
}

Json search_json(const GenaiConfig& config) {
  Json out;
  out.set("diversity_penalty", 0.0);
  out.set("do_sample", config.search.do_sample);
  out.set("early_stopping", true);
  out.set("length_penalty", 1.0);
  out.set("max_length", config.manifest.model.context_length);
  out.set("min_length", 0);
  out.set("no_repeat_ngram_size", 0);
  out.set("num_beams", 1);
  out.set("num_return_sequences", 1);
  out.set("past_present_share_buffer", true);
  out.set("repetition_penalty", config.search.repetition_penalty);
  out.set("temperature", config.search.temperature);
  out.set("top_k", config.search.top_k);
  out.set("top_p", config.search.top_p);
  return out;
}

}  // namespace

std::string genai_model_type(const std::string& family) {
  // genai knows no qwen3_next; the text decoder types only decide how positions and states are bound.
  return family == "qwen3_5" ? "qwen3_5_text" : "qwen3_5_moe_text";
}

Json genai_config_json(const GenaiConfig& config) {
  SLUICE_CHECK(!config.manifest.graphs.empty());
  Json out;
  out.set("model", model_json(config));
  out.set("search", search_json(config));
  if (config.manifest.layout == Layout::packed) {
    Json batching;
    batching.set("block_size", config.manifest.block_size);
    batching.set("max_batch_size", config.manifest.max_batch);
    batching.set("num_blocks", config.manifest.kv_blocks);
    Json engine;
    engine.set("dynamic_batching", std::move(batching));
    out.set("engine", std::move(engine));
  }
  return out;
}

}  // namespace sluice

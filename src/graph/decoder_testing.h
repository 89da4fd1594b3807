// What the tests of this folder share: configs, plans, and questions to a graph.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "graph/decoder.h"
#include "package/manifest.h"
#include "target/plan.h"

namespace sluice::graph_testing {

// Four layers: linear, linear with experts, full, full with experts.
inline HybridConfig tiny_config() {
  HybridConfig c;
  c.model_type = "qwen3_5_moe_text";
  c.family = "qwen3_5_moe";
  c.layers = 4;
  c.hidden = 24;
  c.intermediate = 40;
  c.vocab = 50;
  c.max_positions = 2048;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 16;
  c.linear_k_heads = 2;
  c.linear_v_heads = 6;
  c.linear_k_dim = 8;
  c.linear_v_dim = 4;
  c.conv_kernel = 4;
  c.layer_kinds = {LayerKind::linear_attention, LayerKind::linear_attention, LayerKind::full_attention,
                   LayerKind::full_attention};
  c.moe_layers = {false, true, false, true};
  c.moe = MoeConfig{5, 2, 12, 20, true};
  c.rope.inverse_frequency = {1.0, 0.1};
  return c;
}

// Qwen3.5/3.6/3.8-27B.
inline HybridConfig config_27b() {
  HybridConfig c;
  c.model_type = "qwen3_5_text";
  c.family = "qwen3_5";
  c.layers = 64;
  c.hidden = 5120;
  c.intermediate = 17408;
  c.vocab = 248320;
  c.max_positions = 262144;
  c.heads = 24;
  c.kv_heads = 4;
  c.head_dim = 256;
  c.linear_k_heads = 16;
  c.linear_v_heads = 48;
  c.linear_k_dim = c.linear_v_dim = 128;
  c.conv_kernel = 4;
  for (int i = 1; i <= 64; ++i) {
    c.layer_kinds.push_back(i % 4 == 0 ? LayerKind::full_attention : LayerKind::linear_attention);
  }
  c.moe_layers.assign(64, false);
  c.rope.theta = 1e7;
  c.rope.mrope_section = {11, 11, 10};
  c.rope.mrope_interleaved = true;
  c.rope.inverse_frequency.assign(32, 1.0);
  return c;
}

inline DecoderGraph build(const HybridConfig& config, const ExportOptions& options, DType source = DType::bf16) {
  return build_decoder(config, resolve(config, options), [source](std::string_view) { return source; });
}

// One of the six combinations: dense ones for ort-cpu, packed ones for sluice unless told otherwise.
inline ExportOptions combination(Layout layout, Recurrence recurrence, Gates gates) {
  ExportOptions options;
  options.target = layout == Layout::dense ? Target::ort_cpu : Target::sluice;
  options.layout = layout;
  options.recurrence = recurrence;
  options.gates = gates;
  return options;
}

inline std::vector<ExportOptions> six_combinations() {
  return {combination(Layout::dense, Recurrence::linear_attention, Gates::effective),
          combination(Layout::dense, Recurrence::gated_delta_net, Gates::raw),
          combination(Layout::dense, Recurrence::gated_delta_net, Gates::effective),
          combination(Layout::packed, Recurrence::gated_delta_net, Gates::raw),
          combination(Layout::packed, Recurrence::gated_delta_net, Gates::effective),
          combination(Layout::packed, Recurrence::varlen_linear_attention, Gates::effective)};
}

inline std::map<std::string, int> histogram(const Graph& graph) {
  std::map<std::string, int> counts;
  for (const Node& node : graph.nodes()) ++counts[(node.domain == "sluice" ? "sluice." : "") + node.op];
  return counts;
}

inline const Node& node(const Graph& graph, std::string_view name) {
  const auto found = std::ranges::find(graph.nodes(), name, &Node::name);
  if (found == graph.nodes().end()) throw std::runtime_error("no node " + std::string(name));
  return *found;
}

// The node that computes a value.
inline const Node& producer(const Graph& graph, Value value) {
  for (const Node& n : graph.nodes()) {
    if (std::ranges::find(n.outputs, value) != n.outputs.end()) return n;
  }
  throw std::runtime_error("no node computes " + graph.info(value).name);
}

// "f32 [batch_size, 3]"; "-" for an absent value.
inline std::string describe(const Graph& graph, Value value) {
  if (!value) return "-";
  const ValueInfo& info = graph.info(value);
  std::string out(dtype_name(info.dtype));
  for (std::size_t i = 0; i < info.shape.size(); ++i) {
    const Extent& e = info.shape[i];
    out += (i == 0 ? " [" : ", ") + (e.value >= 0 ? std::to_string(e.value) : e.symbol);
  }
  return out + (info.shape.empty() ? " []" : "]");
}

inline std::vector<std::string> describe(const Graph& graph, const std::vector<Value>& values) {
  std::vector<std::string> out;
  for (const Value value : values) out.push_back(describe(graph, value));
  return out;
}

inline std::vector<std::string> names(const Graph& graph, const std::vector<Value>& values) {
  std::vector<std::string> out;
  for (const Value value : values) out.push_back(value ? graph.info(value).name : "-");
  return out;
}

// "chunk_size=64 scale=0 update_rule=gated_delta", sorted by name.
inline std::string attributes(const Node& n) {
  std::vector<std::string> parts;
  for (const Attribute& a : n.attributes) {
    std::string value;
    if (const auto* i = std::get_if<std::int64_t>(&a.value)) value = fmt::format("{}", *i);
    if (const auto* f = std::get_if<float>(&a.value)) value = fmt::format("{}", *f);
    if (const auto* s = std::get_if<std::string>(&a.value)) value = *s;
    if (const auto* v = std::get_if<std::vector<std::int64_t>>(&a.value)) {
      for (const std::int64_t i : *v) value += (value.empty() ? "" : ",") + std::to_string(i);
    }
    parts.push_back(a.name + "=" + value);
  }
  std::ranges::sort(parts);
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : " ") + part;
  return out;
}

}  // namespace sluice::graph_testing

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "inspect/tally.h"
#include "onnx/serialize.h"
#include "package/manifest.h"

namespace sluice {
namespace {

ModelFacts facts_of(const ModelInfo& i) {
  ModelFacts m;
  m.model_type = i.model_type, m.family = i.family;
  m.layers = i.layers, m.hidden = i.hidden, m.vocab = i.vocab, m.context = i.context_length;
  m.heads = i.heads, m.kv_heads = i.kv_heads, m.head_dim = i.head_dim;
  m.linear_k_heads = i.linear_k_heads, m.linear_v_heads = i.linear_v_heads;
  m.linear_k_dim = i.linear_k_dim, m.linear_v_dim = i.linear_v_dim, m.conv_kernel = i.conv_kernel;
  m.experts = i.experts, m.experts_per_token = i.experts_per_token;
  return m;
}

void add_weights(InspectReport& report, const Manifest& manifest) {
  std::set<std::tuple<std::string, std::uint64_t>> seen;  // bytes that two initializers share count once
  bool head = false;
  for (const WeightInfo& w : manifest.weights_index) {
    TensorReport tensor;
    tensor.name = w.initializer;
    tensor.dtype = w.dtype;
    tensor.shape = w.shape;
    tensor.bytes = w.bytes;
    tensor.file = w.file;
    tensor.offset = w.offset;
    tensor.use = w.canonical.empty() ? "table" : w.canonical;
    if (!w.canonical.empty() && !w.transform.empty()) tensor.use += fmt::format(" ({})", w.transform);
    tensor.part = part_of(w.canonical);
    tensor.layer = layer_of_weight(w.canonical);
    head = head || w.canonical == "lm_head";
    if (w.canonical.ends_with(".mlp.up") && w.shape.size() == 2) {
      report.model.intermediate = std::max(w.shape[0], w.shape[1]) == report.model.hidden
                                      ? std::min(w.shape[0], w.shape[1])
                                      : std::max(w.shape[0], w.shape[1]);
    }
    if (seen.emplace(w.file, w.offset).second) add_part(report, tensor, element_count(w.shape).value_or(0));
    report.tensors.push_back(std::move(tensor));
  }
  report.model.tied = !head;
}

void add_operators(InspectReport& report, const std::filesystem::path& package, const Manifest& manifest) {
  std::map<std::pair<std::string, std::string>, std::uint64_t> counts;
  for (const GraphInfo& graph : manifest.graphs) {
    const OnnxModel model = read_model(package / graph.file);
    for (const Node& node : model.graph.nodes()) ++counts[{node.domain, node.op}];
  }
  for (const auto& [key, count] : counts) report.operators.push_back({key.first, key.second, count});
  std::sort(report.operators.begin(), report.operators.end(), [](const OperatorCount& a, const OperatorCount& b) {
    return std::tie(b.count, a.domain, a.type) < std::tie(a.count, b.domain, b.type);
  });
}

void add_build(InspectReport& report, const Manifest& m) {
  report.build = {{"target", m.target},
                  {"layout", std::string(name_of(m.layout))},
                  {"recurrence", std::string(name_of(m.recurrence))},
                  {"gates", std::string(name_of(m.gates))},
                  {"activations", std::string(dtype_name(m.activation))},
                  {"weights", m.weights},
                  {"q/k norm epsilon", fmt::format("{}", m.qk_norm_epsilon)},
                  {"written by", "sluice " + m.sluice_version}};
  if (m.layout == Layout::packed) {
    report.build.emplace_back("KV pool", m.kv_blocks > 0
                                             ? fmt::format("{} blocks of {} tokens", m.kv_blocks, m.block_size)
                                             : fmt::format("blocks of {} tokens", m.block_size));
    report.build.emplace_back("requests a step", fmt::format("at most {}", m.max_batch));
    report.build.emplace_back("state updates", m.state_update_capacity > 0
                                                   ? fmt::format("{} draft tokens", m.state_update_capacity)
                                                   : "none");
  }
  report.build.emplace_back("logits", m.prune_lm_head ? "of the last positions" : "of every position");
}

}  // namespace

InspectReport inspect_package(const std::filesystem::path& path) {
  const Manifest manifest = read_manifest(path);
  InspectReport report;
  report.subject = InspectReport::Subject::package;
  report.path = path.string();
  report.model = facts_of(manifest.model);
  for (const std::string& kind : manifest.model.layer_kinds) {
    if (kind != "linear_attention" && kind != "full_attention")
      fail("{}: {}: layer kind \"{}\" is not known", path.string(), kManifestFile, kind);
    report.layers.push_back({kind == "full_attention" ? LayerKind::full_attention : LayerKind::linear_attention});
  }
  add_weights(report, manifest);
  add_operators(report, path, manifest);
  add_build(report, manifest);
  for (const GraphInfo& graph : manifest.graphs) {
    for (const StateInfo& state : graph.states) {
      DType& dtype = state.kind == StateKind::conv        ? report.state.conv_dtype
                     : state.kind == StateKind::recurrent ? report.state.recurrent_dtype
                                                          : report.state.kv_dtype;
      dtype = state.dtype;
    }
  }
  for (const FileInfo& file : manifest.files) report.files.push_back({file.path, file.bytes});
  fill_state(report);
  finish_parts(report);
  report.left_out = manifest.unused_tensors;
  report.notices = manifest.notices;
  return report;
}

}  // namespace sluice

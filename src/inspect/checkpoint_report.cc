#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "inspect/tally.h"
#include "weights/weight_source.h"

namespace sluice {
namespace {

std::string rope_in_words(const RopeConfig& rope) {
  const char* type = rope.type == RopeType::yarn ? "yarn" : rope.type == RopeType::linear ? "linear" : "plain";
  std::string text = fmt::format("{}, theta {}, {} dimensions of a head", type, rope.theta, rope.rotary_dim());
  if (rope.type != RopeType::default_) text += fmt::format(", factor {}", rope.factor);
  if (rope.mrope_section[0] + rope.mrope_section[1] + rope.mrope_section[2] > 0) {
    text += fmt::format(", sections {}{}", fmt::join(rope.mrope_section, "+"),
                        rope.mrope_interleaved ? " interleaved" : "");
  }
  return text;
}

ModelFacts facts_of(const HybridConfig& c) {
  ModelFacts m;
  m.model_type = c.model_type, m.family = c.family;
  m.layers = c.layers, m.hidden = c.hidden, m.vocab = c.vocab, m.context = c.max_positions;
  m.intermediate = c.intermediate;
  m.heads = c.heads, m.kv_heads = c.kv_heads, m.head_dim = c.head_dim;
  m.linear_k_heads = c.linear_k_heads, m.linear_v_heads = c.linear_v_heads;
  m.linear_k_dim = c.linear_k_dim, m.linear_v_dim = c.linear_v_dim, m.conv_kernel = c.conv_kernel;
  if (c.moe)
    m.experts = c.moe->experts, m.experts_per_token = c.moe->experts_per_token,
    m.expert_intermediate = c.moe->intermediate;
  m.tied = c.tied;
  m.rope = rope_in_words(c.rope);
  return m;
}

// The dtype that most bytes are stored in: the activations' when the model runs as it was trained.
DType main_dtype(const Checkpoint& checkpoint) {
  std::map<DType, std::uint64_t> bytes;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) bytes[tensor.view->dtype] += tensor.view->bytes.size();
  const auto most =
      std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == bytes.end() ? DType::bf16 : most->first;
}

void add_tensors(InspectReport& report, const ModelSource& source) {
  std::map<std::string_view, std::vector<std::string_view>> uses;  // tensor -> canonical weights
  for (const CanonicalWeight& weight : source.weights.weights()) {
    for (const std::string_view tensor : weight.tensors) uses[tensor].push_back(weight.name);
  }
  std::map<std::string_view, std::string_view> reasons;
  for (const UnusedTensor& unused : source.weights.unused()) reasons.emplace(unused.name, unused.reason);
  for (const CheckpointTensor& t : source.checkpoint.tensors()) {
    TensorReport tensor;
    tensor.name = t.name;
    tensor.dtype = t.view->dtype;
    tensor.shape = t.view->shape;
    tensor.bytes = t.view->bytes.size();
    tensor.file = source.checkpoint.files()[static_cast<std::size_t>(t.file)].name;
    tensor.offset = t.offset;
    const auto use = uses.find(t.name);
    tensor.used = use != uses.end();
    if (tensor.used) {
      tensor.use = fmt::format("{}", fmt::join(use->second, " "));
      tensor.part = part_of(use->second.front());
      tensor.layer = layer_of_weight(use->second.front());
      add_part(report, tensor, *element_count(tensor.shape));
    } else {
      tensor.use = reasons.at(t.name);
    }
    report.tensors.push_back(std::move(tensor));
  }
  std::sort(report.tensors.begin(), report.tensors.end(), [](const TensorReport& a, const TensorReport& b) {
    return std::tie(a.layer, a.part, a.name) < std::tie(b.layer, b.part, b.name);
  });
}

}  // namespace

InspectReport inspect_checkpoint(const std::filesystem::path& path) {
  const ModelSource source = open_model(path);
  InspectReport report;
  report.path = path.string();
  report.model = facts_of(source.config);
  for (const LayerKind kind : source.config.layer_kinds) report.layers.push_back({kind});
  add_tensors(report, source);
  if (const CheckpointFile* index = source.checkpoint.index()) report.files.push_back({index->name, index->bytes});
  for (const CheckpointFile& file : source.checkpoint.files()) report.files.push_back({file.name, file.bytes});
  report.state.kv_dtype = report.state.conv_dtype = main_dtype(source.checkpoint);
  fill_state(report);
  finish_parts(report);
  report.notices = source.notices();
  return report;
}

}  // namespace sluice

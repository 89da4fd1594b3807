#include "weights/weight_resolver.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <map>

#include "base/error.h"

namespace sluice {
namespace {

// Where the language model's tensors stand, in real checkpoints; independent of how config.json is nested.
constexpr std::array<std::string_view, 5> kPrefixes{"model.language_model.", "language_model.model.", "model.",
                                                    "language_model.", ""};
constexpr std::array<std::string_view, 3> kHeadNames{"lm_head.weight", "language_model.lm_head.weight",
                                                     "model.lm_head.weight"};
constexpr std::string_view kHead = "lm_head.weight";
constexpr std::size_t kNamesShown = 5;

constexpr std::array<std::string_view, 14> kQuantizedEndings{
    ".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".input_scale", ".scale",
    ".scales",       ".qweight",          ".qzeros",         ".g_idx",       ".weight_packed",
    ".weight_shape", ".quant_state",      ".absmax",         ".SCB"};

bool is_quantized_name(std::string_view name) {
  return std::any_of(kQuantizedEndings.begin(), kQuantizedEndings.end(),
                     [&](std::string_view end) { return name.ends_with(end); }) ||
         name.find("_scale_inv") != std::string_view::npos || name.find(".quant_map") != std::string_view::npos;
}

bool is_adapter_name(std::string_view name) {
  return name.find("lora_") != std::string_view::npos || name.starts_with("base_model.model.");
}

// The N of "layers.N." in a name, or nothing.
std::optional<std::int64_t> layer_of(std::string_view name) {
  constexpr std::string_view kLayers = "layers.";
  const auto at = name.find(kLayers);
  if (at == std::string_view::npos) return std::nullopt;
  std::int64_t layer = 0;
  const char* begin = name.data() + at + kLayers.size();
  const auto result = std::from_chars(begin, name.data() + name.size(), layer);
  if (result.ec != std::errc() || result.ptr == name.data() + name.size() || *result.ptr != '.') return std::nullopt;
  return layer;
}

// Whether two tensors hold the same bytes at up to 64 places of 4096 bytes: a whole embedding is gigabytes.
bool look_alike(const TensorView& a, const TensorView& b) {
  if (a.dtype != b.dtype || a.bytes.size() != b.bytes.size()) return false;
  constexpr std::size_t kPlaces = 64, kBytes = 4096;
  const std::size_t size = a.bytes.size(), step = std::max<std::size_t>(size / kPlaces, 1);
  for (std::size_t at = 0; at < size; at += step) {
    const std::size_t count = std::min(kBytes, size - at);
    if (std::memcmp(a.bytes.data() + at, b.bytes.data() + at, count) != 0) return false;
  }
  return true;
}

}  // namespace

void WeightResolver::Complaint::add(std::string text) {
  if (count++ == 0) first = std::move(text);
}

WeightResolver::WeightResolver(const HybridConfig& config, const Checkpoint& checkpoint, WeightSource& out)
    : config_(config), checkpoint_(checkpoint), out_(out), claimed_(checkpoint.tensors().size(), false) {}

void WeightResolver::resolve() {
  find_prefix();
  for (const WeightSpec& spec : weight_table(config_)) resolve(spec);
  sort_leftovers();
  report();
  note_unused();
}

void WeightResolver::find_prefix() {
  std::vector<std::string_view> found;
  for (const std::string_view prefix : kPrefixes) {
    const std::string layers = std::string(prefix) + "layers.", embedding = std::string(prefix) + "embed_tokens.weight";
    const auto tensors = checkpoint_.tensors();
    const auto it =
        std::lower_bound(tensors.begin(), tensors.end(), std::string_view(layers),
                         [](const CheckpointTensor& tensor, std::string_view key) { return tensor.name < key; });
    if ((it != tensors.end() && it->name.starts_with(layers)) || checkpoint_.find(embedding) != nullptr)
      found.push_back(prefix);
  }
  if (found.size() == 1) {
    out_.prefix_ = found[0];
    return;
  }
  if (found.size() > 1) {
    fail("{}: language model tensors stand under both \"{}\" and \"{}\"; expected one of them", where(), found[0],
         found[1]);
  }
  std::vector<std::string_view> names;
  for (const CheckpointTensor& tensor : checkpoint_.tensors()) {
    if (is_adapter_name(tensor.name)) {
      fail("{}: the tensor \"{}\" belongs to a LoRA adapter; merge it into its base model first", where(), tensor.name);
    }
    if (names.size() < kNamesShown) names.push_back(tensor.name);
  }
  fail(
      "{}: no language model: none of its {} tensors is named model.layers.N..., model.language_model.layers.N..., "
      "language_model.model.layers.N... or layers.N...; the first are: {}",
      where(), checkpoint_.tensors().size(), names.empty() ? "(none)" : fmt::format("{}", fmt::join(names, ", ")));
}

const CheckpointTensor* WeightResolver::lookup(std::string_view name) const {
  return name == kHead ? lookup_head() : checkpoint_.find(out_.prefix_ + std::string(name));
}

const CheckpointTensor* WeightResolver::lookup_head() const {
  if (const CheckpointTensor* tensor = checkpoint_.find(out_.prefix_ + std::string(kHead))) return tensor;
  for (const std::string_view name : kHeadNames) {
    if (const CheckpointTensor* tensor = checkpoint_.find(name)) return tensor;
  }
  return nullptr;
}

// The form whose first tensor is there; else one of whose tensors any is, so that the message names what that form
// lacks; else none, and the first tensors of all forms are noted as missing.
const WeightForm* WeightResolver::choose_form(const WeightSpec& spec) {
  const auto present = [&](const SourceTensor& source) { return lookup(source.name) != nullptr; };
  for (const WeightForm& form : spec.forms) {
    if (present(form.sources.front())) return &form;
  }
  for (const WeightForm& form : spec.forms) {
    if (spec.forms.size() == 1 || std::any_of(form.sources.begin(), form.sources.end(), present)) return &form;
  }
  std::vector<std::string> names;
  for (const WeightForm& form : spec.forms)
    names.push_back(fmt::format("\"{}{}\"", out_.prefix_, form.sources.front().name));
  missing_.add(fmt::format("{}{}", fmt::join(names, " or "), why_expected(spec.forms.front().sources.front().name)));
  return nullptr;
}

void WeightResolver::resolve(const WeightSpec& spec) {
  const WeightForm* form = choose_form(spec);
  if (form == nullptr) return;
  CanonicalWeight weight{spec.name, spec.shape, {}, spec.elementwise, {}};
  std::vector<const CheckpointTensor*> tensors;
  tensors.reserve(form->sources.size());
  bool whole = true;
  for (const SourceTensor& source : form->sources) {
    const CheckpointTensor* tensor = claim(source);
    tensors.push_back(tensor);
    if (tensor == nullptr) {
      whole = false;
    } else {
      weight.tensors.push_back(tensor->name);
    }
  }
  if (!whole) return;
  std::int32_t last_file = -1;
  for (const RowRun& run : form->runs) append(weight, *tensors[static_cast<std::size_t>(run.source)], run, last_file);
  SLUICE_CHECK(weight.elements() == element_count(spec.shape));
  out_.weights_.push_back(std::move(weight));
}

const CheckpointTensor* WeightResolver::claim(const SourceTensor& source) {
  const CheckpointTensor* tensor = lookup(source.name);
  if (tensor == nullptr) {
    const std::string name = source.name == kHead ? source.name : out_.prefix_ + source.name;
    missing_.add(fmt::format("\"{}\"{}", name, why_expected(source.name)));
    return nullptr;
  }
  claimed_[static_cast<std::size_t>(tensor - checkpoint_.tensors().data())] = true;
  const TensorView& view = *tensor->view;
  if (!is_float_weight(view.dtype)) {
    const bool fp8 = view.dtype == DType::f8_e4m3 || view.dtype == DType::f8_e5m2 || view.dtype == DType::i8 ||
                     view.dtype == DType::u8;
    (fp8 ? refused_ : wrong_dtype_)
        .add(fmt::format("the tensor \"{}\" is stored as {}; expected one of BF16, F16, F32{}", tensor->name,
                         safetensors_dtype(view.dtype),
                         fp8 ? ": a quantised checkpoint is not supported, export from its original" : ""));
    return nullptr;
  }
  if (view.shape != source.shape) {
    wrong_shape_.add(fmt::format("the tensor \"{}\" has the shape {}; config.json asks for {} ({})", tensor->name,
                                 to_string(view.shape), to_string(source.shape), source.axes));
    return nullptr;
  }
  return tensor;
}

void WeightResolver::append(CanonicalWeight& weight, const CheckpointTensor& tensor, const RowRun& run,
                            std::int32_t& last_file) {
  const TensorView& view = *tensor.view;
  const std::uint64_t row_bytes = static_cast<std::uint64_t>(view.shape.back()) * dtype_bytes(view.dtype);
  const auto bytes = view.bytes.subspan(static_cast<std::uint64_t>(run.first) * row_bytes,
                                        static_cast<std::uint64_t>(run.count) * row_bytes);
  if (!weight.pieces.empty() && last_file == tensor.file) {
    WeightPiece& last = weight.pieces.back();
    if (last.dtype == view.dtype && last.bytes.data() + last.bytes.size() == bytes.data()) {
      last.bytes = {last.bytes.data(), last.bytes.size() + bytes.size()};
      return;
    }
  }
  last_file = tensor.file;
  weight.pieces.push_back({view.dtype, bytes});
}

void WeightResolver::sort_leftovers() {
  const auto tensors = checkpoint_.tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (claimed_[i]) continue;
    const std::string_view name = tensors[i].name;
    if (auto reason = reason_unused(name)) {
      out_.unused_.push_back({std::string(name), std::move(*reason)});
    } else if (is_adapter_name(name)) {
      refused_.add(
          fmt::format("the tensor \"{}\" belongs to a LoRA adapter; merge it into its base model first", name));
    } else if (is_quantized_name(name)) {
      refused_.add(fmt::format(
          "the tensor \"{}\" belongs to a quantised checkpoint, which is not supported; export from its original",
          name));
    } else {
      unexpected_.add(fmt::format("\"{}\"{}", name, why_unexpected(name)));
    }
  }
  if (config_.tied) {
    if (const CheckpointTensor* head = lookup_head()) check_tied_head(*head);
  }
}

std::optional<std::string> WeightResolver::reason_unused(std::string_view name) const {
  if (config_.tied && (name == out_.prefix_ + std::string(kHead) ||
                       std::find(kHeadNames.begin(), kHeadNames.end(), name) != kHeadNames.end())) {
    return "tied: the embedding is the output projection";
  }
  if (name.ends_with(".rotary_emb.inv_freq")) return "rotary buffer: computed from the config";
  for (const std::string_view prefix : kPrefixes) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = name.substr(prefix.size());
    if (rest.starts_with("mtp.")) return "multi-token prediction";
    if (rest.starts_with("visual.") || rest.starts_with("vision_tower.") || rest.starts_with("vision_model.") ||
        rest.starts_with("multi_modal_projector.")) {
      return "vision tower";
    }
  }
  return std::nullopt;
}

void WeightResolver::check_tied_head(const CheckpointTensor& head) const {
  const CheckpointTensor* embedding = lookup("embed_tokens.weight");
  if (embedding == nullptr) return;  // an error of its own
  const bool same = look_alike(*head.view, *embedding->view);
  if (!same && config_.tie_disputed) {
    fail(
        "{}: tie_word_embeddings differs between the root of config.json and text_config, and \"{}\" is not the "
        "embedding; "
        "say in both which of them is the output projection",
        where(), head.name);
  }
  if (!same) {
    out_.notices_.push_back(fmt::format(
        "WARNING: \"{}\" differs from the embedding, but tie_word_embeddings is true: the embedding is used, "
        "as transformers does; set tie_word_embeddings to false to use it",
        head.name));
  }
}

void WeightResolver::report() const {
  const auto more = [](const Complaint& complaint) {
    return complaint.count > 1 ? fmt::format(" (and {} more)", complaint.count - 1) : std::string();
  };
  for (const Complaint* complaint : {&refused_, &wrong_dtype_, &wrong_shape_}) {
    if (complaint->count > 0) fail("{}: {}{}", where(), complaint->first, more(*complaint));
  }
  if (missing_.count > 0 && unexpected_.count > 0) {
    fail("{}: the tensor {} is missing{}, and {} is not expected{}; config.json and the weights do not belong together",
         where(), missing_.first, more(missing_), unexpected_.first, more(unexpected_));
  }
  if (missing_.count > 0) fail("{}: the tensor {} is missing{}", where(), missing_.first, more(missing_));
  if (unexpected_.count > 0) {
    fail("{}: the tensor {} is not expected{}; Sluice leaves nothing out silently", where(), unexpected_.first,
         more(unexpected_));
  }
}

// In brackets after a missing name: the config key that asks for it.
std::string WeightResolver::why_expected(std::string_view name) const {
  if (name == kHead) return " (asked for because tie_word_embeddings is false)";
  const auto layer = layer_of(name);
  if (!layer) return "";
  if (name.ends_with(".bias")) return " (asked for because attention_bias is true)";
  if (name.find(".linear_attn.") != std::string_view::npos)
    return fmt::format(" (layer {} is linear_attention by layer_types)", *layer);
  if (name.find(".self_attn.") != std::string_view::npos)
    return fmt::format(" (layer {} is full_attention by layer_types)", *layer);
  if (name.find(".mlp.") == std::string_view::npos) return fmt::format(" (num_hidden_layers is {})", config_.layers);
  if (config_.is_moe(*layer))
    return fmt::format(" (layer {} has {} experts by num_experts)", *layer, config_.moe->experts);
  return fmt::format(" (layer {} has no experts by the config)", *layer);
}

// In brackets after an unexpected name: the config key that speaks against it.
std::string WeightResolver::why_unexpected(std::string_view name) const {
  const auto layer = layer_of(name);
  if (!layer || *layer < 0) return "";
  if (*layer >= config_.layers) return fmt::format(" (num_hidden_layers is {})", config_.layers);
  const bool linear = config_.is_linear(*layer);
  if (linear && name.find(".self_attn.") != std::string_view::npos)
    return fmt::format(" (layer {} is linear_attention by layer_types)", *layer);
  if (!linear && name.find(".linear_attn.") != std::string_view::npos)
    return fmt::format(" (layer {} is full_attention by layer_types)", *layer);
  if (name.find(".self_attn.") != std::string_view::npos && name.ends_with(".bias")) {
    return fmt::format(" (attention_bias is {})", config_.attention_bias);
  }
  if (name.find(".experts.") != std::string_view::npos && config_.is_moe(*layer)) {
    return fmt::format(" (num_experts is {})", config_.moe->experts);
  }
  if (name.find(".mlp.") != std::string_view::npos) {
    return fmt::format(" (layer {} has {}experts by the config)", *layer, config_.is_moe(*layer) ? "" : "no ");
  }
  return "";
}

// One notice a reason.
void WeightResolver::note_unused() {
  struct Group {
    std::uint64_t count = 0, bytes = 0;
    std::string first;
  };
  std::map<std::string_view, Group> groups;
  for (const UnusedTensor& unused : out_.unused_) {
    Group& group = groups[unused.reason];
    if (group.count++ == 0) group.first = unused.name;
    group.bytes += checkpoint_.find(unused.name)->view->bytes.size();
  }
  for (const auto& [reason, group] : groups) {
    out_.notices_.push_back(fmt::format("left out, {}: {} tensor{}, {} bytes ({}{})", reason, group.count,
                                        group.count == 1 ? "" : "s", group.bytes, group.first,
                                        group.count == 1 ? "" : ", ..."));
  }
  if (config_.mtp_layers > 0 && groups.find("multi-token prediction") == groups.end()) {
    out_.notices_.push_back(fmt::format(
        "the config announces {} layer{} of multi-token prediction, but there is no mtp.* tensor; nothing is left out",
        config_.mtp_layers, config_.mtp_layers == 1 ? "" : "s"));
  }
}

}  // namespace sluice

#include "target/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/error.h"
#include "target/capability.h"

namespace sluice {
namespace {

template <typename Enum, std::size_t N>
std::string_view name_in(const std::array<std::pair<Enum, std::string_view>, N>& names, Enum value) noexcept {
  const auto found = std::ranges::find(names, value, &std::pair<Enum, std::string_view>::first);
  return found == names.end() ? std::string_view() : found->second;
}

template <typename Enum, std::size_t N>
std::optional<Enum> value_in(const std::array<std::pair<Enum, std::string_view>, N>& names,
                             std::string_view name) noexcept {
  const auto found = std::ranges::find(names, name, &std::pair<Enum, std::string_view>::second);
  return found == names.end() ? std::nullopt : std::optional(found->first);
}

using TargetName = std::pair<Target, std::string_view>;
using StorageName = std::pair<WeightStorage, std::string_view>;
constexpr std::array kTargets{TargetName{Target::ort_cpu, "ort-cpu"}, TargetName{Target::ort_cuda, "ort-cuda"},
                              TargetName{Target::sluice, "sluice"}};
constexpr std::array kStorages{StorageName{WeightStorage::source, "source"}, StorageName{WeightStorage::fp32, "fp32"},
                               StorageName{WeightStorage::fp16, "fp16"}, StorageName{WeightStorage::bf16, "bf16"}};

constexpr std::int64_t kDefaultMaxLength = 32768;  // tokens: 8 MB of tables at 64 rotary dimensions
constexpr std::int64_t kLeastMaxLength = 1024;     // the same for models that were made for fewer positions
constexpr std::int64_t kMaxMaxLength = std::int64_t{1} << 24;
constexpr std::int64_t kDefaultMaxBatch = 16;
constexpr std::int64_t kMaxMaxBatch = 256;  // of onnxruntime-genai's engine
constexpr std::int64_t kMaxBlockSize = 65536;

// How the user spells a dtype: fp32, fp16, bf16.
std::string_view option_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "fp32";
    case DType::f16:
      return "fp16";
    default:
      return dtype_name(dtype);
  }
}

WeightStorage storage_of(DType dtype) {
  if (dtype == DType::f16) return WeightStorage::fp16;
  return dtype == DType::bf16 ? WeightStorage::bf16 : WeightStorage::fp32;
}

std::int64_t count_layers(const HybridConfig& config, std::int64_t layers, LayerKind kind) {
  return std::count(config.layer_kinds.begin(), config.layer_kinds.begin() + layers, kind);
}

bool any_experts(const HybridConfig& config, std::int64_t layers) {
  return std::find(config.moe_layers.begin(), config.moe_layers.begin() + layers, true) !=
         config.moe_layers.begin() + layers;
}

// "dense linear-attention, dense gated-delta-net"
std::string list_combinations(const Capability& row) {
  std::string out;
  for (const Combination& c : row.combinations) {
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name_of(c.layout), name_of(c.recurrence));
  }
  return out;
}

// Why a layout and a recurrence do not go together on a target.
std::string reason_against(Layout layout, Recurrence recurrence, const Capability& row) {
  if (layout == Layout::packed && recurrence == Recurrence::linear_attention) {
    return "LinearAttention takes whole batches, it has no packed form";
  }
  if (layout == Layout::dense && recurrence == Recurrence::varlen_linear_attention) {
    return "VarlenLinearAttention takes packed tokens only";
  }
  if (layout == Layout::packed && row.target == Target::ort_cpu) {
    return "ONNX Runtime has no PagedAttention kernel on a CPU; --target sluice brings one";
  }
  if (recurrence == Recurrence::varlen_linear_attention) {
    return "no released ONNX Runtime has VarlenLinearAttention; --target sluice brings it";
  }
  return "libsluice_ops serves packed graphs; use --target ort-cpu for dense ones";
}

const Combination& choose_combination(const ExportOptions& options, const Capability& row) {
  const auto fits = [&](const Combination& c) {
    return (!options.layout || c.layout == *options.layout) &&
           (!options.recurrence || c.recurrence == *options.recurrence);
  };
  const auto found = std::ranges::find_if(row.combinations, fits);
  if (found != row.combinations.end()) return *found;
  const Layout layout = options.layout.value_or(options.recurrence == Recurrence::linear_attention
                                                    ? Layout::dense
                                                    : (options.recurrence == Recurrence::varlen_linear_attention
                                                           ? Layout::packed
                                                           : row.combinations.front().layout));
  const Recurrence recurrence = options.recurrence.value_or(Recurrence::gated_delta_net);
  fail("--target {}: {} {} cannot run there: {} (it runs {})", name_of(row.target), name_of(layout),
       name_of(recurrence), reason_against(layout, recurrence, row), list_combinations(row));
}

Gates choose_gates(const ExportOptions& options, const Combination& combination) {
  if (!options.gates) return combination.gates.front();
  if (std::ranges::find(combination.gates, *options.gates) == combination.gates.end()) {
    fail("--gates {}: {} {} takes {} gates only{}", name_of(*options.gates), name_of(combination.layout),
         name_of(combination.recurrence), name_of(combination.gates.front()),
         combination.recurrence == Recurrence::linear_attention ? ": the operator has no gate inputs of its own" : "");
  }
  return *options.gates;
}

void check_activation(const HybridConfig& config, const ExportPlan& plan, const Capability& row) {
  const std::string_view name = option_name(plan.activation);
  if (!is_float_weight(plan.activation)) fail("--dtype {}: expected fp32, fp16 or bf16", name);
  for (const MissingDType& missing : row.missing) {
    if (missing.dtype == plan.activation) {
      fail("--dtype {}: not on --target {}: {}", name, name_of(row.target), missing.reason);
    }
  }
  const bool attention = count_layers(config, plan.layers, LayerKind::full_attention) != 0;
  if (plan.activation == DType::f32 && attention && !row.no_f32_attention.empty()) {
    fail("--dtype {}: not on --target {}: {}; use fp16 or bf16, or keep only leading linear layers (--num-layers)",
         name, name_of(row.target), row.no_f32_attention);
  }
  if (plan.activation == DType::bf16 && plan.recurrence == Recurrence::gated_delta_net &&
      plan.gates == Gates::effective) {
    fail("--dtype bf16: not with effective gates: the evaluation contract of GatedDeltaNet is fp32 or fp16");
  }
}

WeightStorage choose_storage(const ExportOptions& options, const Capability& row, DType activation) {
  const bool in_place = row.other_storage == Capability::OtherStorage::in_place;
  const WeightStorage own = storage_of(activation);
  const WeightStorage storage = options.weights.value_or(in_place ? WeightStorage::source : own);
  if (storage != own && row.other_storage == Capability::OtherStorage::refused) {
    fail("--weights {}: --target {} stores weights in the activation dtype {}: {} would convert them in every step",
         name_of(storage), name_of(row.target), option_name(activation), row.runtime);
  }
  return storage;
}

void check_operators(const HybridConfig& config, const ExportPlan& plan, const Capability& row) {
  const bool attention = count_layers(config, plan.layers, LayerKind::full_attention) != 0;
  if (attention && config.head_dim % row.head_dim_multiple != 0) {
    fail("config.json: head_dim {}: attention on --target {} needs a multiple of {}", config.head_dim,
         name_of(row.target), row.head_dim_multiple);
  }
  if (any_experts(config, plan.layers)) {
    const bool other = row.experts_any_gate && config.activation == Activation::gelu_tanh;
    if (config.activation != Activation::silu && !other) {
      fail("config.json: hidden_act: experts on --target {} can be gated by silu{} only", name_of(row.target),
           row.experts_any_gate ? " or gelu_pytorch_tanh" : " (the MoE operator's swiglu)");
    }
  }
  std::int64_t sections = 0;
  for (const std::int64_t section : config.rope.mrope_section) sections += section;
  if (plan.rope == RopeForm::mrotary && 2 * sections != config.rope.rotary_dim()) {
    fail("config.json: mrope_section sums to {}, expected half of the {} rotary dimensions", sections,
         config.rope.rotary_dim());
  }
}

std::int64_t checked_range(std::string_view option, std::int64_t value, std::int64_t low, std::int64_t high,
                           std::string_view unit) {
  if (value < low || value > high) fail("{} {}: expected {}..{} {}", option, value, low, high, unit);
  return value;
}

void refuse_paged_options(const ExportOptions& options) {
  const std::pair<const std::optional<std::int64_t>&, std::string_view> given[] = {
      {options.kv_blocks, "--kv-blocks"}, {options.block_size, "--block-size"}, {options.max_batch, "--max-batch"}};
  for (const auto& [value, name] : given) {
    if (value) fail("{} {}: only a packed layout has a paged cache", name, *value);
  }
}

void size_cache(const ExportOptions& options, const Capability& row, ExportPlan& plan) {
  plan.block_size =
      checked_range("--block-size", options.block_size.value_or(row.default_block_size), 1, kMaxBlockSize, "tokens");
  const bool power_of_two = (plan.block_size & (plan.block_size - 1)) == 0;
  if (row.block_size_power_of_two && (plan.block_size < 16 || !power_of_two)) {
    fail("--block-size {}: --target {} needs a power of two of at least 16", plan.block_size, name_of(row.target));
  }
  plan.max_batch =
      checked_range("--max-batch", options.max_batch.value_or(kDefaultMaxBatch), 1, kMaxMaxBatch, "requests");
  const std::int64_t longest = (plan.max_length + plan.block_size - 1) / plan.block_size;  // blocks
  if (!options.kv_blocks && !row.pins_kv_blocks) return;
  plan.kv_blocks = checked_range("--kv-blocks", options.kv_blocks.value_or(longest), 1,
                                 std::numeric_limits<std::int32_t>::max() / plan.block_size, "blocks");
  if (plan.kv_blocks < longest) {
    plan.notices.push_back(fmt::format("{} blocks of {} tokens hold at most {} tokens: a sequence cannot reach {}",
                                       plan.kv_blocks, plan.block_size, plan.kv_blocks * plan.block_size,
                                       plan.max_length));
  }
}

std::int64_t choose_layers(const HybridConfig& config, const ExportOptions& options,
                           std::vector<std::string>& notices) {
  const std::int64_t layers = options.num_layers.value_or(config.layers);
  if (layers < 1 || layers > config.layers) {
    fail("--num-layers {}: the model has {} layers, expected 1..{}", layers, config.layers, config.layers);
  }
  if (layers < config.layers) {
    notices.push_back(fmt::format("only the leading {} of {} layers are kept: the package does not answer as the model",
                                  layers, config.layers));
  }
  return layers;
}

std::int64_t choose_max_length(const HybridConfig& config, const ExportOptions& options,
                               std::vector<std::string>& notices) {
  const std::int64_t own = std::clamp(config.max_positions, kLeastMaxLength, kDefaultMaxLength);
  const std::int64_t length =
      checked_range("--max-length", options.max_length.value_or(own), 1, kMaxMaxLength, "tokens");
  if (length > config.max_positions) {
    notices.push_back(fmt::format("sequences of up to {} tokens, of a model made for {} (max_position_embeddings)",
                                  length, config.max_positions));
  } else if (!options.max_length && length < config.max_positions) {
    notices.push_back(fmt::format("sequences of up to {} tokens, of the model's {}: --max-length raises it", length,
                                  config.max_positions));
  }
  return length;
}

std::int64_t choose_capacity(const HybridConfig& config, const ExportOptions& options, const ExportPlan& plan) {
  const std::int64_t capacity = checked_range("--state-update-capacity", options.state_update_capacity, 0, 8, "tokens");
  if (capacity == 0) return 0;
  const bool captures =
      plan.layout == Layout::packed && plan.recurrence == Recurrence::gated_delta_net && plan.gates == Gates::raw;
  if (!captures) {
    fail("--state-update-capacity {}: only packed gated-delta-net with raw gates captures its state updates", capacity);
  }
  if (count_layers(config, plan.layers, LayerKind::linear_attention) == 0) {
    fail("--state-update-capacity {}: the graph has no linear-attention layer, hence no state to capture", capacity);
  }
  return capacity;
}

void derive(const HybridConfig& config, const Capability& row, ExportPlan& plan) {
  const bool multimodal = std::ranges::any_of(config.rope.mrope_section, [](std::int64_t s) { return s != 0; });
  plan.linear = row.linear;
  plan.rope = plan.layout == Layout::packed && multimodal ? RopeForm::mrotary : RopeForm::rotary;
  plan.conv_state = plan.activation;
  const bool dense_operator = plan.recurrence == Recurrence::linear_attention;
  plan.recurrent_state = dense_operator ? plan.activation : DType::f32;
  plan.value_major_state = !dense_operator;
  const bool inside = plan.recurrence == Recurrence::gated_delta_net && plan.gates == Gates::raw;
  plan.qk_norm_epsilon = inside ? 1e-12 : 1e-6;
}

void add_notices(const HybridConfig& config, const Capability& row, ExportPlan& plan) {
  const bool own = plan.weights == storage_of(plan.activation);
  if (!own && row.other_storage == Capability::OtherStorage::widened_at_load) {
    plan.notices.push_back(fmt::format("weights are stored as {} and converted to {} when the runtime loads them",
                                       name_of(plan.weights), option_name(plan.activation)));
  }
  if (plan.layout == Layout::packed && count_layers(config, plan.layers, LayerKind::full_attention) == 0) {
    plan.notices.push_back("no full-attention layer is left: onnxruntime-genai's engine cannot serve the package");
  }
}

}  // namespace

std::string_view name_of(Target target) noexcept { return name_in(kTargets, target); }
std::optional<Target> target_from_name(std::string_view name) noexcept { return value_in(kTargets, name); }
std::string_view name_of(WeightStorage storage) noexcept { return name_in(kStorages, storage); }
std::optional<WeightStorage> weight_storage_from_name(std::string_view name) noexcept {
  return value_in(kStorages, name);
}

DType ExportPlan::stored(DType source) const {
  switch (weights) {
    case WeightStorage::fp32:
      return DType::f32;
    case WeightStorage::fp16:
      return DType::f16;
    case WeightStorage::bf16:
      return DType::bf16;
    case WeightStorage::source:
      break;
  }
  return source;
}

ExportPlan resolve(const HybridConfig& config, const ExportOptions& options) {
  SLUICE_CHECK(config.layers > 0 && std::ssize(config.layer_kinds) == config.layers &&
               std::ssize(config.moe_layers) == config.layers && config.max_positions > 0);
  const Capability& row = capability(options.target);
  const Combination& combination = choose_combination(options, row);
  ExportPlan plan;
  plan.target = options.target;
  plan.layout = combination.layout;
  plan.recurrence = combination.recurrence;
  plan.gates = choose_gates(options, combination);
  plan.activation = options.activation.value_or(row.default_activation);
  plan.layers = choose_layers(config, options, plan.notices);
  plan.prune_lm_head = options.prune_lm_head;
  plan.max_length = choose_max_length(config, options, plan.notices);
  check_activation(config, plan, row);
  plan.weights = choose_storage(options, row, plan.activation);
  derive(config, row, plan);
  check_operators(config, plan, row);
  plan.state_update_capacity = choose_capacity(config, options, plan);
  if (plan.layout == Layout::packed) {
    size_cache(options, row, plan);
  } else {
    refuse_paged_options(options);
  }
  add_notices(config, row, plan);
  return plan;
}

HybridConfig leading_layers(const HybridConfig& config, std::int64_t layers) {
  SLUICE_CHECK(layers >= 1 && layers <= config.layers);
  HybridConfig cut = config;
  cut.layers = layers;
  cut.layer_kinds.resize(static_cast<std::size_t>(layers));
  cut.moe_layers.resize(static_cast<std::size_t>(layers));
  return cut;
}

}  // namespace sluice

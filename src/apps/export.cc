// sluice export CHECKPOINT OUTPUT: says what it will write, writes it, and sums up.
#include "export/exporter.h"

#include <fmt/format.h>

#include <cstdio>
#include <initializer_list>
#include <map>
#include <vector>

#include "apps/command.h"
#include "apps/terminal_progress.h"
#include "base/error.h"

namespace sluice {
namespace {

struct ExportArguments {
  CommonOptions common;
  std::string checkpoint, output;
  std::string target = "ort-cpu", layout, recurrence, gates, dtype, weights;
  std::optional<std::int64_t> num_layers, kv_blocks, block_size, max_batch, max_length;
  std::int64_t capacity = 0;
  bool prune = false, force = false, no_sync = false, link = false, dry_run = false;
};

constexpr const char* kExamples = R"(
Examples:
  sluice export Qwen3.5-0.8B out                       fp32, dense, for ONNX Runtime on a CPU and onnxruntime-genai
  sluice export Qwen3.5-0.8B out --target sluice       packed, weights as stored, for continuous batching on a CPU
  sluice export Qwen3.5-0.8B out --target ort-cuda     packed fp16, for onnxruntime-genai's engine on a GPU
  sluice export Qwen3.5-27B out --target sluice --dry-run     what would be written, and how much)";

template <typename T, typename Parse>
std::optional<T> parse_name(const std::string& text, const char* option, const Parse& parse) {
  if (text.empty()) return std::nullopt;
  const auto value = parse(text);
  if (!value) fail("{} {}: not a value of this option; see sluice export --help", option, text);
  return value;
}

std::optional<DType> activation_from_name(const std::string& text) {
  static constexpr std::pair<const char*, DType> kNames[] = {
      {"fp32", DType::f32}, {"fp16", DType::f16}, {"bf16", DType::bf16}};
  for (const auto& [name, dtype] : kNames) {
    if (text == name) return dtype;
  }
  return std::nullopt;
}

// The options as given, for the manifest: names and values, defaults left out.
Json options_json(const ExportArguments& a) {
  Json out{Json::Object{}};
  out.set("target", a.target);
  const auto text = [&](const char* key, const std::string& value) {
    if (!value.empty()) out.set(key, value);
  };
  text("layout", a.layout), text("recurrence", a.recurrence), text("gates", a.gates), text("dtype", a.dtype),
      text("weights", a.weights);
  const auto number = [&](const char* key, std::optional<std::int64_t> value) {
    if (value) out.set(key, *value);
  };
  number("num-layers", a.num_layers), number("kv-blocks", a.kv_blocks), number("block-size", a.block_size);
  number("max-batch", a.max_batch), number("max-length", a.max_length);
  if (a.capacity != 0) out.set("state-update-capacity", a.capacity);
  if (a.prune) out.set("prune-lm-head", true);
  return out;
}

ExportRequest request_of(const ExportArguments& a) {
  ExportRequest request;
  request.checkpoint = a.checkpoint;
  request.output = a.output;
  ExportOptions& o = request.options;
  o.target = *parse_name<Target>(a.target, "--target", target_from_name);
  o.layout = parse_name<Layout>(a.layout, "--layout", layout_from_name);
  o.recurrence = parse_name<Recurrence>(a.recurrence, "--recurrence", recurrence_from_name);
  o.gates = parse_name<Gates>(a.gates, "--gates", gates_from_name);
  o.activation = parse_name<DType>(a.dtype, "--dtype", activation_from_name);
  o.weights = parse_name<WeightStorage>(a.weights, "--weights", weight_storage_from_name);
  o.num_layers = a.num_layers;
  o.prune_lm_head = a.prune;
  o.state_update_capacity = a.capacity;
  o.kv_blocks = a.kv_blocks;
  o.block_size = a.block_size;
  o.max_batch = a.max_batch;
  o.max_length = a.max_length;
  request.operator_library = operator_library();
  request.force = a.force;
  request.sync = !a.no_sync;
  request.link = a.link;
  request.threads = a.common.threads;
  request.options_given = options_json(a);
  return request;
}

// What is left out, by reason: "vision tower: 300 tensors".
std::string left_out(const Manifest& m) {
  std::map<std::string, int> by_reason;
  for (const std::string& text : m.unused_tensors) {
    const auto open = text.rfind(" (");
    ++by_reason[open == std::string::npos ? text : text.substr(open + 2, text.size() - open - 3)];
  }
  std::string out;
  for (const auto& [reason, count] : by_reason)
    out += fmt::format("{}{} ({} tensors)", out.empty() ? "" : ", ", reason, count);
  return out.empty() ? "nothing" : out;
}

void print_plan(const ExportReport& plan, const ExportArguments& a) {
  const Manifest& m = plan.manifest;
  std::int64_t full = 0;
  for (const std::string& kind : m.model.layer_kinds) full += kind == "full_attention" ? 1 : 0;
  fmt::print(stderr, "{}: {}, {} layers ({} linear, {} full attention), hidden {}, vocabulary {}\n", a.checkpoint,
             m.model.model_type, m.model.layers, m.model.layers - full, full, m.model.hidden, m.model.vocab);
  fmt::print(stderr, "  target {}: layout {}, recurrence {}, gates {}, activations {}, weights {}, context {}\n",
             m.target, name_of(m.layout), name_of(m.recurrence), name_of(m.gates), dtype_name(m.activation), m.weights,
             m.model.context_length);
  fmt::print(stderr, "  writes {} in {} files to {}\n", human_bytes(plan.total_bytes), m.files.size() + 1, a.output);
  fmt::print(stderr, "  leaves out: {}\n", left_out(m));
}

Json report_json(const ExportReport& report, bool dry_run) {
  const Manifest& m = report.manifest;
  Json out;
  out.set("dry_run", dry_run);
  out.set("target", m.target);
  out.set("layout", std::string(name_of(m.layout)));
  out.set("recurrence", std::string(name_of(m.recurrence)));
  out.set("gates", std::string(name_of(m.gates)));
  out.set("activation", std::string(dtype_name(m.activation)));
  out.set("weights", m.weights);
  out.set("total_bytes", report.total_bytes);
  Json::Array files;
  for (const FileInfo& file : m.files) {
    Json row;
    row.set("path", file.path).set("bytes", file.bytes);
    files.push_back(std::move(row));
  }
  out.set("files", Json(std::move(files)));
  out.set("unused_tensors", Json::array(m.unused_tensors));
  out.set("notices", Json::array(m.notices));
  if (!dry_run) {
    out.set("seconds", report.seconds);
    out.set("peak_resident_bytes", peak_resident_bytes());
  }
  return out;
}

void print_summary(const ExportReport& report, const ExportArguments& a) {
  for (const FileInfo& file : report.manifest.files)
    fmt::print("  {:<24} {:>10}\n", file.path, human_bytes(file.bytes));
  fmt::print("{}: {} in {:.2f} s, peak memory {}\n", a.output, human_bytes(report.total_bytes), report.seconds,
             human_bytes(peak_resident_bytes()));
  fmt::print("next: sluice verify {} --checkpoint {}\n", a.output, a.checkpoint);
}

int run_export(const ExportArguments& a) {
  ExportJob job(request_of(a));
  TerminalProgress progress("exporting", a.common.quiet);
  if (!a.common.quiet) print_plan(job.planned(), a);
  for (const std::string& notice : job.planned().manifest.notices) progress.notice(notice);
  if (a.dry_run) {
    if (a.common.json) {
      fmt::print("{}\n", report_json(job.planned(), true).dump());
    } else {
      for (const FileInfo& file : job.planned().manifest.files)
        fmt::print("  {:<24} {:>14} bytes\n", file.path, file.bytes);
      fmt::print("dry run: {} ({} bytes) would be written to {}; nothing was\n", human_bytes(job.planned().total_bytes),
                 job.planned().total_bytes, a.output);
    }
    return kDone;
  }
  const ExportReport report = job.run(progress);
  if (a.common.json) {
    fmt::print("{}\n", report_json(report, false).dump());
  } else {
    print_summary(report, a);
  }
  return kDone;
}

// The set of a choice is told by --help and by the message that refuses another.
CLI::IsMember one_of(std::initializer_list<std::string> names) {
  return CLI::IsMember(std::vector<std::string>(names));
}

void add_choices(CLI::App* command, ExportArguments* a) {
  command->add_option("--target", a->target, "Who runs it: ort-cpu | ort-cuda | sluice")
      ->check(one_of({"ort-cpu", "ort-cuda", "sluice"}))
      ->capture_default_str();
  command->add_option("--layout", a->layout, "dense | packed (continuous batching); default by target")
      ->check(one_of({"dense", "packed"}));
  command
      ->add_option("--recurrence", a->recurrence,
                   "linear-attention | gated-delta-net | varlen-linear-attention; default by target")
      ->check(one_of({"linear-attention", "gated-delta-net", "varlen-linear-attention"}));
  command
      ->add_option("--gates", a->gates,
                   "raw (gates inside the operator) | effective (computed in the graph); default by recurrence")
      ->check(one_of({"raw", "effective"}));
  command->add_option("--dtype", a->dtype, "Activations: fp32 | fp16 | bf16; default by target")
      ->check(one_of({"fp32", "fp16", "bf16"}));
  command
      ->add_option("--weights", a->weights,
                   "Stored matrices: source (as in the checkpoint) | fp32 | fp16 | bf16; default by target")
      ->check(one_of({"source", "fp32", "fp16", "bf16"}));
}

// What bounds them is the model or the target, so that here they need only be integers.
void add_numbers(CLI::App* command, ExportArguments* a) {
  command->add_option("--num-layers", a->num_layers, "Keep the leading layers only")->check(whole_number);
  command
      ->add_option("--state-update-capacity", a->capacity,
                   "Draft tokens whose state can be rolled back: 0..8, packed only")
      ->check(whole_number)
      ->capture_default_str();
  command->add_option("--kv-blocks", a->kv_blocks, "Blocks of the KV pool, packed only")->check(whole_number);
  command->add_option("--block-size", a->block_size, "Tokens a KV block, packed only")->check(whole_number);
  command->add_option("--max-batch", a->max_batch, "Requests a step, packed only")->check(whole_number);
  command->add_option("--max-length", a->max_length, "Longest sequence: context length and rows of the position tables")
      ->check(whole_number);
}

}  // namespace

void add_export(CLI::App& app, Action& action) {
  auto a = std::make_shared<ExportArguments>();
  CLI::App* command = app.add_subcommand("export", "Write an ONNX package from a Hugging Face checkpoint");
  command->footer(kExamples);
  command
      ->add_option("CHECKPOINT", a->checkpoint, "Checkpoint folder: config.json and safetensors (a hub snapshot works)")
      ->required();
  command->add_option("OUTPUT", a->output, "Folder to write")->required();
  add_choices(command, a.get());
  add_numbers(command, a.get());
  command->add_flag("--prune-lm-head", a->prune, "Logits of the last position (packed: of logits_indices) only");
  command->add_flag("--force", a->force, "Replace a package that is there");
  command->add_flag("--no-sync", a->no_sync, "Do not wait until the disk has it");
  command->add_flag(
      "--link", a->link,
      "Hard-link weights that are stored as they are (Python's onnx refuses that; keep the checkpoint as it is)");
  command->add_flag("--dry-run", a->dry_run, "Say what would be written, and write nothing");
  add_common(*command, a->common);
  command->callback([a, &action] { action = [a] { return run_export(*a); }; });
}

}  // namespace sluice

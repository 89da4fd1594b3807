#include "export/exporter.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/version.h"
#include "export/file_writer.h"
#include "export/side_files.h"
#include "export/staged_folder.h"
#include "export/weight_stream.h"
#include "graph/decoder.h"
#include "onnx/serialize.h"
#include "package/genai_config.h"
#include "weights/value_scan.h"

namespace sluice {
namespace fs = std::filesystem;
namespace {

constexpr const char* kDataFile = "model.onnx.data";
constexpr const char* kLibraryFile = "libsluice_ops.so";
constexpr const char* kGenaiFile = "genai_config.json";
constexpr std::uint64_t kAlignment = 64;           // bytes: a cache line, so that kernels start on one
constexpr std::uint64_t kSpaceMargin = 16u << 20;  // bytes a file system needs beside the files
constexpr const char* kUnknownHash = "0000000000000000";

std::uint64_t align_up(std::uint64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

// What tells that a file was exchanged or rewritten while it was read.
struct FileStamp {
  std::uint64_t bytes = 0;
  std::int64_t seconds = 0, nanoseconds = 0;
  bool operator==(const FileStamp&) const = default;
};

FileStamp stamp_of(const MappedFile& file) {
  struct stat status{};
  if (::fstat(file.descriptor(), &status) != 0)
    fail("{}: cannot be examined: {}", file.path().string(), std::strerror(errno));
  return {static_cast<std::uint64_t>(status.st_size), status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

std::string hash_of(std::span<const std::byte> bytes) {
  Xxh3 hash;
  hash.update(bytes);
  return hash.hex();
}

// The 8 bytes of length and the JSON after them; the checkpoint has checked that they are there.
std::span<const std::byte> safetensors_header(const MappedFile& file) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.bytes().data(), sizeof length);
  return file.bytes().first(sizeof length + length);
}

std::vector<SourceInfo> describe_sources(const Checkpoint& checkpoint, const SideFiles& side) {
  std::vector<SourceInfo> out;
  const auto whole = [&](const std::string& name) {
    const MappedFile file(checkpoint.directory() / name);
    out.push_back({name, file.bytes().size(), hash_of(file.bytes()), "whole"});
  };
  whole("config.json");
  if (const CheckpointFile* index = checkpoint.index()) whole(index->name);
  const auto files = checkpoint.files();
  for (std::size_t i = 0; i < files.size(); ++i) {
    const MappedFile& mapping = checkpoint.mapping(static_cast<std::int32_t>(i));
    out.push_back({files[i].name, mapping.bytes().size(), hash_of(safetensors_header(mapping)), "header"});
  }
  for (const std::string& name : side.names) whole(name);
  return out;
}

ModelInfo describe_model(const HybridConfig& config, const ExportPlan& plan, const SideFiles& side) {
  ModelInfo m;
  m.model_type = config.model_type;
  m.family = config.family;
  m.layers = config.layers;
  m.hidden = config.hidden;
  m.vocab = config.vocab;
  m.context_length = plan.max_length;
  m.heads = config.heads;
  m.kv_heads = config.kv_heads;
  m.head_dim = config.head_dim;
  m.linear_k_heads = config.linear_k_heads;
  m.linear_v_heads = config.linear_v_heads;
  m.linear_k_dim = config.linear_k_dim;
  m.linear_v_dim = config.linear_v_dim;
  m.conv_kernel = config.conv_kernel;
  for (const LayerKind kind : config.layer_kinds) {
    m.layer_kinds.emplace_back(kind == LayerKind::linear_attention ? "linear_attention" : "full_attention");
  }
  if (config.moe) {
    m.experts = config.moe->experts;
    m.experts_per_token = config.moe->experts_per_token;
  }
  m.eos_ids = side.eos_ids;
  m.bos_id = side.bos_id;
  m.pad_id = side.pad_id;
  return m;
}

std::string transforms_text(const WeightRecipe& recipe) {
  std::string text;
  for (const Transform transform : recipe.transforms)
    text += (text.empty() ? "" : " ") + std::string(name_of(transform));
  return text;
}

std::string canonical_text(const WeightRecipe& recipe) {
  std::string text;
  for (const std::string& name : recipe.weights) text += (text.empty() ? "" : " ") + name;
  return text;
}

// The next place for an initializer: on a cache line, or where a weight that is stored as it is can share blocks.
std::uint64_t next_offset(std::uint64_t offset, const StoredBytes& stored) {
  if (stored.file == nullptr || stored.bytes < kCloneBytes) return align_up(offset);
  constexpr std::uint64_t kBlock = FileWriter::kCloneBlock;
  return offset + (stored.offset % kBlock + kBlock - offset % kBlock) % kBlock;
}

// Gives every external initializer its place in the data file, and lists them for the manifest. Returns the file's
// size.
std::uint64_t place_initializers(Graph& graph, const ModelSource& model, bool link, std::vector<WeightInfo>& index) {
  std::uint64_t offset = 0;
  for (Initializer& initializer : graph.initializers()) {
    const WeightRecipe* weight = initializer.weight_recipe();
    if (weight == nullptr && initializer.table_recipe() == nullptr) continue;
    const ValueInfo& value = graph.info(initializer.value);
    const auto bytes = byte_count(initializer.shape, value.dtype);
    SLUICE_CHECK(bytes.has_value());
    const StoredBytes stored =
        weight != nullptr ? stored_bytes(*weight, value.dtype, model.checkpoint, model.weights) : StoredBytes{};
    const bool linked = link && stored.file != nullptr;
    if (!linked) offset = next_offset(offset, stored);
    initializer.placement = {linked ? stored.file->path().filename().string() : kDataFile,
                             linked ? stored.offset : offset, *bytes};
    index.push_back({value.name, weight != nullptr ? canonical_text(*weight) : "", value.dtype, initializer.shape,
                     initializer.placement.file, initializer.placement.offset, *bytes,
                     weight != nullptr ? transforms_text(*weight) : initializer.table_recipe()->name,
                     weight != nullptr && !linked ? kUnknownHash : ""});
    if (!linked) offset += *bytes;
  }
  return offset;
}

void append_notices(std::vector<std::string>& to, const std::vector<std::string>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

struct ExportJob::Impl {
  explicit Impl(ExportRequest given);
  Manifest describe();
  ExportReport run(Progress& progress);
  void write_data(const fs::path& stage, Progress& progress, ExportReport& report);
  void report_values(const WeightRecipe& recipe, const ConvertCounts& counts, Progress& progress,
                     ExportReport& report) const;
  std::vector<const MappedFile*> linked_files() const;
  void link_files(const fs::path& stage, Progress& progress, Manifest& manifest) const;
  void write_small(const fs::path& stage, Manifest& manifest);
  void write_one(const fs::path& stage, const std::string& name, std::span<const std::byte> bytes, Manifest& manifest);
  void check_unchanged() const;
  std::uint64_t written_bytes() const;

  ExportRequest request;
  ModelSource model;
  HybridConfig config;  // cut to the layers asked for
  ExportPlan plan;
  SideFiles side;
  DecoderGraph graph;
  std::string model_bytes;
  std::uint64_t data_bytes = 0;
  std::vector<FileStamp> stamps;
  ExportReport planned;
};

ExportJob::Impl::Impl(ExportRequest given) : request(std::move(given)), model(open_model(request.checkpoint)) {
  const auto files = model.checkpoint.files();
  for (std::size_t i = 0; i < files.size(); ++i)
    stamps.push_back(stamp_of(model.checkpoint.mapping(static_cast<std::int32_t>(i))));
  plan = resolve(model.config, request.options);
  config = leading_layers(model.config, plan.layers);
  side = read_side_files(model.checkpoint.directory(), config);
  check_target(request.output, request.force);
  if (plan.target == Target::sluice && !fs::is_regular_file(request.operator_library)) {
    fail("{}: the operator library is not there; build it (scripts/build) beside the program",
         request.operator_library.string());
  }
  graph = build_decoder(config, plan, [&](std::string_view name) { return model.weights.at(name).dtype(); });
  planned.manifest = describe();
  data_bytes = place_initializers(graph.model.graph, model, request.link, planned.manifest.weights_index);
  model_bytes = serialize(graph.model);

  Manifest& m = planned.manifest;
  const auto file = [&](const std::string& name, std::uint64_t bytes) {
    m.files.push_back({name, bytes, kUnknownHash});
  };
  file(kDataFile, data_bytes);
  for (const MappedFile* linked : linked_files()) file(linked->path().filename().string(), linked->bytes().size());
  file(graph.info.file, model_bytes.size());
  for (const std::string& name : side.names) file(name, fs::file_size(model.checkpoint.directory() / name));
  if (plan.target == Target::sluice) file(kLibraryFile, fs::file_size(request.operator_library));
  file(kGenaiFile, genai_config_json({m, side.search, side.markers, plan.target == Target::sluice ? kLibraryFile : ""})
                           .dump()
                           .size() +
                       1);
  planned.total_bytes = to_json(m).dump().size() + 1;
  for (const FileInfo& f : m.files) planned.total_bytes += f.bytes;
}

Manifest ExportJob::Impl::describe() {
  Manifest m;
  m.sluice_version = version();
  m.target = name_of(plan.target);
  m.layout = plan.layout;
  m.recurrence = plan.recurrence;
  m.gates = plan.gates;
  m.activation = plan.activation;
  m.weights = name_of(plan.weights);
  m.prune_lm_head = plan.prune_lm_head;
  m.state_update_capacity = plan.state_update_capacity;
  m.block_size = plan.block_size;
  m.kv_blocks = plan.kv_blocks;
  m.max_batch = plan.max_batch;
  m.chunk_size = plan.chunk_size;
  m.qk_norm_epsilon = plan.qk_norm_epsilon;
  m.model = describe_model(config, plan, side);
  m.graphs = {graph.info};
  m.sources = describe_sources(model.checkpoint, side);
  for (const UnusedTensor& unused : model.weights.unused())
    m.unused_tensors.push_back(unused.name + " (" + unused.reason + ")");
  append_notices(m.notices, model.notices());
  append_notices(m.notices, plan.notices);
  append_notices(m.notices, side.notices);
  SerialExecutor serial;
  Progress silent;
  for (const ValueFinding& finding : scan_values(model, ScanScope::small_tensors, serial, silent)) {
    m.notices.push_back(finding.message);
  }
  m.options = request.options_given;
  return m;
}

void ExportJob::Impl::report_values(const WeightRecipe& recipe, const ConvertCounts& counts, Progress& progress,
                                    ExportReport& report) const {
  if (counts.overflowed > 0 || counts.flushed > 0) report.losses.push_back({canonical_text(recipe), counts});
  if (counts.not_finite == 0) return;
  for (const std::string& name : recipe.weights) {
    const CanonicalWeight& weight = model.weights.at(name);
    std::uint64_t element = 0;
    for (const WeightPiece& piece : weight.pieces) {
      if (const auto found = find_non_finite(piece)) {
        const std::string text = fmt::format(
            "{} (from {}): {} values are NaN or Inf, the first is element {}; the model's answers will not be finite",
            name, weight.tensors.front(), counts.not_finite, element + found->first);
        progress.notice(text);
        report.manifest.notices.push_back(text);
        return;
      }
      element += piece.elements();
    }
  }
}

void ExportJob::Impl::write_data(const fs::path& stage, Progress& progress, ExportReport& report) {
  ThreadPool pool(request.threads > 0 ? request.threads
                                      : static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  WeightStream stream(model.checkpoint, model.weights, pool);
  FileWriter writer(stage / kDataFile, request.sync);
  std::uint64_t done = 0;
  const OnBytes on_bytes = [&](std::uint64_t bytes) {
    done += bytes;
    progress.advance(done, data_bytes);
    if (progress.cancelled()) fail("interrupted: nothing was written to {}", request.output.string());
  };
  const std::vector<std::byte> zeros(FileWriter::kCloneBlock);
  auto entry = report.manifest.weights_index.begin();
  for (const Initializer& initializer : graph.model.graph.initializers()) {
    if (initializer.placement.file.empty()) continue;
    if (initializer.placement.file != kDataFile) {
      ++entry;
      continue;
    }
    writer.append(std::span(zeros).first(initializer.placement.offset - writer.offset()));
    const DType dtype = graph.model.graph.info(initializer.value).dtype;
    if (const WeightRecipe* recipe = initializer.weight_recipe()) {
      const StreamedWeight streamed = stream.write(*recipe, dtype, writer, on_bytes);
      entry->source_xxh3 = streamed.source_xxh3;
      report_values(*recipe, streamed.counts, progress, report);
    } else {
      const std::uint64_t rows = static_cast<std::uint64_t>(initializer.shape.at(0));
      write_table(*initializer.table_recipe(), initializer.placement.bytes,
                  rows == 0 ? 0 : initializer.placement.bytes / rows, writer, on_bytes);
    }
    ++entry;
    SLUICE_CHECK(writer.offset() == initializer.placement.offset + initializer.placement.bytes);
  }
  report.manifest.files.push_back(writer.finish());
}

// The shards that some initializer lies in.
std::vector<const MappedFile*> ExportJob::Impl::linked_files() const {
  std::set<std::string> named;
  for (const Initializer& initializer : graph.model.graph.initializers()) named.insert(initializer.placement.file);
  std::vector<const MappedFile*> out;
  for (std::size_t i = 0; i < model.checkpoint.files().size(); ++i) {
    const MappedFile& file = model.checkpoint.mapping(static_cast<std::int32_t>(i));
    if (named.contains(file.path().filename().string())) out.push_back(&file);
  }
  return out;
}

void ExportJob::Impl::link_files(const fs::path& stage, Progress& progress, Manifest& manifest) const {
  for (const MappedFile* file : linked_files()) {
    const std::string name = file->path().filename().string();
    std::error_code error;
    fs::create_hard_link(fs::canonical(file->path()), stage / name, error);
    if (error)
      fail("{}: cannot be linked into {}: {}; leave out --link", file->path().string(), request.output.string(),
           error.message());
    progress.notice(name +
                    ": linked, not copied: do not edit the checkpoint in place, and Python's onnx refuses the package");
    manifest.files.push_back({name, file->bytes().size(), hash_of(file->bytes())});
  }
}

void ExportJob::Impl::write_one(const fs::path& stage, const std::string& name, std::span<const std::byte> bytes,
                                Manifest& manifest) {
  FileWriter writer(stage / name, request.sync);
  writer.append(bytes);
  manifest.files.push_back(writer.finish());
}

void ExportJob::Impl::write_small(const fs::path& stage, Manifest& manifest) {
  const auto text = [&](const std::string& name, const std::string& content) {
    write_one(stage, name, std::as_bytes(std::span(content)), manifest);
  };
  text(graph.info.file, model_bytes);
  for (const std::string& name : side.names)
    write_one(stage, name, MappedFile(model.checkpoint.directory() / name).bytes(), manifest);
  const bool ships_library = plan.target == Target::sluice;
  if (ships_library) write_one(stage, kLibraryFile, MappedFile(request.operator_library).bytes(), manifest);
  text(kGenaiFile,
       genai_config_json({manifest, side.search, side.markers, ships_library ? kLibraryFile : ""}).dump() + "\n");
  Manifest own;  // the manifest lists every file but itself
  const std::string content = to_json(manifest).dump() + "\n";
  write_one(stage, kManifestFile, std::as_bytes(std::span(content)), own);
}

void ExportJob::Impl::check_unchanged() const {
  for (std::size_t i = 0; i < stamps.size(); ++i) {
    const MappedFile& file = model.checkpoint.mapping(static_cast<std::int32_t>(i));
    if (!(stamp_of(file) == stamps[i]))
      fail("{}: changed while being exported; run the export again when it is at rest", file.path().string());
  }
}

// What the file system must have room for: linked files take none.
std::uint64_t ExportJob::Impl::written_bytes() const {
  std::uint64_t bytes = planned.total_bytes;
  for (const MappedFile* linked : linked_files()) bytes -= linked->bytes().size();
  return bytes;
}

ExportReport ExportJob::Impl::run(Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  ExportReport report = planned;
  report.manifest.files.clear();
  check_free_space(request.output, written_bytes() + kSpaceMargin);
  StagedFolder stage(request.output, {request.force, request.sync});
  if (stage.found_remains()) progress.notice("removed the remains of an interrupted export");
  write_data(stage.path(), progress, report);
  link_files(stage.path(), progress, report.manifest);
  check_unchanged();
  for (const WeightLoss& loss : report.losses) {
    const std::string text =
        fmt::format("{}: of {} values, {} overflowed to Inf and {} became 0 in the stored dtype", loss.canonical,
                    loss.counts.elements, loss.counts.overflowed, loss.counts.flushed);
    progress.notice(text);
    report.manifest.notices.push_back(text);
  }
  write_small(stage.path(), report.manifest);
  if (progress.cancelled()) fail("interrupted: nothing was written to {}", request.output.string());
  stage.commit();
  report.total_bytes = 0;
  for (const auto& entry : fs::directory_iterator(request.output)) report.total_bytes += entry.file_size();
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

ExportJob::ExportJob(ExportRequest request) : impl_(std::make_unique<Impl>(std::move(request))) {}
ExportJob::~ExportJob() = default;
const ExportReport& ExportJob::planned() const noexcept { return impl_->planned; }
ExportReport ExportJob::run(Progress& progress) { return impl_->run(progress); }

}  // namespace sluice

#include "package/manifest.h"

#include <array>

#include "base/error.h"
#include "package/paths.h"
#include "package/record.h"

namespace sluice {
namespace {

template <typename E, std::size_t N>
using NameTable = std::array<std::pair<E, std::string_view>, N>;

constexpr NameTable<Layout, 2> kLayouts{{{Layout::dense, "dense"}, {Layout::packed, "packed"}}};
constexpr NameTable<Recurrence, 3> kRecurrences{{{Recurrence::linear_attention, "linear-attention"},
                                                 {Recurrence::gated_delta_net, "gated-delta-net"},
                                                 {Recurrence::varlen_linear_attention, "varlen-linear-attention"}}};
constexpr NameTable<Gates, 2> kGates{{{Gates::raw, "raw"}, {Gates::effective, "effective"}}};
constexpr NameTable<StateKind, 4> kStateKinds{{{StateKind::paged_kv, "paged_kv"},
                                               {StateKind::growing_kv, "growing_kv"},
                                               {StateKind::conv, "conv"},
                                               {StateKind::recurrent, "recurrent"}}};

template <typename E, std::size_t N>
std::string_view name_in(const NameTable<E, N>& table, E value) noexcept {
  for (const auto& [e, name] : table) {
    if (e == value) return name;
  }
  return "?";
}

template <typename E, std::size_t N>
std::optional<E> value_in(const NameTable<E, N>& table, std::string_view text) noexcept {
  for (const auto& [e, name] : table) {
    if (name == text) return e;
  }
  return std::nullopt;
}

}  // namespace

std::string_view name_of(Layout v) noexcept { return name_in(kLayouts, v); }
std::string_view name_of(Recurrence v) noexcept { return name_in(kRecurrences, v); }
std::string_view name_of(Gates v) noexcept { return name_in(kGates, v); }
std::string_view name_of(StateKind v) noexcept { return name_in(kStateKinds, v); }
std::optional<Layout> layout_from_name(std::string_view t) noexcept { return value_in(kLayouts, t); }
std::optional<Recurrence> recurrence_from_name(std::string_view t) noexcept { return value_in(kRecurrences, t); }
std::optional<Gates> gates_from_name(std::string_view t) noexcept { return value_in(kGates, t); }
std::optional<StateKind> state_kind_from_name(std::string_view t) noexcept { return value_in(kStateKinds, t); }

namespace record {

template <>
struct Names<Layout> {
  static std::string_view name(Layout v) { return name_of(v); }
  static std::optional<Layout> from(std::string_view t) { return layout_from_name(t); }
};
template <>
struct Names<Recurrence> {
  static std::string_view name(Recurrence v) { return name_of(v); }
  static std::optional<Recurrence> from(std::string_view t) { return recurrence_from_name(t); }
};
template <>
struct Names<Gates> {
  static std::string_view name(Gates v) { return name_of(v); }
  static std::optional<Gates> from(std::string_view t) { return gates_from_name(t); }
};
template <>
struct Names<StateKind> {
  static std::string_view name(StateKind v) { return name_of(v); }
  static std::optional<StateKind> from(std::string_view t) { return state_kind_from_name(t); }
};

// An extent is a number or the name of a symbol.
template <>
Json write<Extent>(Extent& extent) {
  return extent.value >= 0 ? Json(extent.value) : Json(extent.symbol);
}
template <>
void read<Extent>(const Json& json, const std::string& what, Extent& extent) {
  if (json.is_string()) {
    extent = {-1, json.as_string(what)};
    return;
  }
  extent = {json.as_int(what), ""};
  if (extent.value < 0) fail("{}: expected a size of at least 0 or a symbol, found {}", what, extent.value);
}

}  // namespace record

// The fields of each struct, once, for reading and writing alike.
template <typename Io>
void fields(Io& io, PortInfo& v) {
  io("name", v.name), io("dtype", v.dtype), io("shape", v.shape);
}

template <typename Io>
void fields(Io& io, StateInfo& v) {
  io("kind", v.kind), io("layer", v.layer), io("dtype", v.dtype), io("shape", v.shape);
  io("input", v.input), io("output", v.output);
}

template <typename Io>
void fields(Io& io, GraphInfo& v) {
  io("role", v.role), io("file", v.file), io("inputs", v.inputs), io("outputs", v.outputs), io("states", v.states);
}

template <typename Io>
void fields(Io& io, FileInfo& v) {
  io("path", v.path), io("bytes", v.bytes), io("xxh3", v.xxh3);
}

template <typename Io>
void fields(Io& io, WeightInfo& v) {
  io("initializer", v.initializer), io("canonical", v.canonical), io("dtype", v.dtype), io("shape", v.shape);
  io("file", v.file), io("offset", v.offset), io("bytes", v.bytes), io("transform", v.transform);
  io("source_xxh3", v.source_xxh3);
}

template <typename Io>
void fields(Io& io, SourceInfo& v) {
  io("path", v.path), io("bytes", v.bytes), io("xxh3", v.xxh3), io("covers", v.covers);
}

template <typename Io>
void fields(Io& io, ModelInfo& v) {
  io("model_type", v.model_type), io("family", v.family), io("layers", v.layers), io("hidden", v.hidden);
  io("vocab", v.vocab), io("context_length", v.context_length), io("heads", v.heads), io("kv_heads", v.kv_heads);
  io("head_dim", v.head_dim), io("linear_k_heads", v.linear_k_heads), io("linear_v_heads", v.linear_v_heads);
  io("linear_k_dim", v.linear_k_dim), io("linear_v_dim", v.linear_v_dim), io("conv_kernel", v.conv_kernel);
  io("layer_kinds", v.layer_kinds), io("experts", v.experts), io("experts_per_token", v.experts_per_token);
  io("eos_ids", v.eos_ids), io("bos_id", v.bos_id), io("pad_id", v.pad_id);
}

template <typename Io>
void fields(Io& io, Manifest& v) {
  io("sluice_version", v.sluice_version), io("target", v.target), io("layout", v.layout),
      io("recurrence", v.recurrence);
  io("gates", v.gates), io("activation", v.activation), io("weights", v.weights), io("prune_lm_head", v.prune_lm_head);
  io("state_update_capacity", v.state_update_capacity), io("block_size", v.block_size), io("kv_blocks", v.kv_blocks);
  io("max_batch", v.max_batch), io("chunk_size", v.chunk_size), io("qk_norm_epsilon", v.qk_norm_epsilon);
  io("rank", v.rank), io("world_size", v.world_size), io("model", v.model), io("graphs", v.graphs);
  io("weights_index", v.weights_index), io("sources", v.sources), io("files", v.files);
  io("unused_tensors", v.unused_tensors), io("notices", v.notices), io("options", v.options);
}

Json to_json(const Manifest& manifest) {
  Manifest copy = manifest;  // fields() lists them for reading too, hence not const
  record::Writer writer;
  writer.json.set("sluice_format", Manifest::kFormat);
  fields(writer, copy);
  return std::move(writer.json);
}

Manifest manifest_from_json(const Json& json, std::string_view source) {
  const std::string what(source);
  const std::int64_t format = json.at("sluice_format", what).as_int(what + ": sluice_format");
  if (format != Manifest::kFormat) {
    fail("{}: sluice_format is {}, this version reads {}; export again or use the sluice that wrote it", what, format,
         Manifest::kFormat);
  }
  Manifest manifest;
  record::Reader reader(json, what);
  fields(reader, manifest);
  return manifest;
}

Manifest read_manifest(const std::filesystem::path& package) {
  const std::filesystem::path file = package / kManifestFile;
  if (!std::filesystem::is_regular_file(file)) {
    fail("{}: no {} in it, so it is not a whole Sluice package; run sluice export again", package.string(),
         kManifestFile);
  }
  Manifest manifest = manifest_from_json(read_json(file), file.string());
  for (const GraphInfo& graph : manifest.graphs) check_relative_path(graph.file, file.string());
  for (const FileInfo& written : manifest.files) check_relative_path(written.path, file.string());
  for (const WeightInfo& weight : manifest.weights_index) check_relative_path(weight.file, file.string());
  return manifest;
}

}  // namespace sluice

#include "inspect/tally.h"

#include "base/error.h"
#include "package/manifest.h"

namespace sluice {

void add_part(InspectReport& report, const TensorReport& tensor, std::uint64_t parameters) {
  PartReport& part = report.parts[static_cast<std::size_t>(tensor.part)];
  part.parameters += parameters;
  part.bytes += tensor.bytes;
  if (tensor.layer < 0 || tensor.layer >= static_cast<std::int64_t>(report.layers.size())) return;
  LayerReport& layer = report.layers[static_cast<std::size_t>(tensor.layer)];
  const bool mlp = tensor.part == Part::mlp || tensor.part == Part::experts || tensor.part == Part::shared_expert;
  (mlp ? layer.mlp_bytes : layer.mixer_bytes) += tensor.bytes;
  layer.experts = layer.experts || tensor.part == Part::experts;
}

void finish_parts(InspectReport& report) {
  for (PartReport& part : report.parts) {
    part.active_parameters = part.parameters;
    part.active_bytes = part.bytes;
  }
  const auto scale = [](std::uint64_t value, std::int64_t numerator, std::int64_t denominator) {
    return static_cast<std::uint64_t>(
        static_cast<double>(value) * static_cast<double>(numerator) / static_cast<double>(denominator) + 0.5);
  };
  const ModelFacts& m = report.model;
  PartReport& embedding = report.parts[static_cast<std::size_t>(Part::embedding)];
  if (!m.tied && m.vocab > 0) {
    embedding.active_parameters = scale(embedding.parameters, 1, m.vocab);
    embedding.active_bytes = scale(embedding.bytes, 1, m.vocab);
  }
  if (m.experts > 0) {  // the router is read whole; against the experts it does not show
    PartReport& experts = report.parts[static_cast<std::size_t>(Part::experts)];
    experts.active_parameters = scale(experts.parameters, m.experts_per_token, m.experts);
    experts.active_bytes = scale(experts.bytes, m.experts_per_token, m.experts);
  }
  PartReport& tables = report.parts[static_cast<std::size_t>(Part::tables)];
  tables.parameters = tables.active_parameters = tables.active_bytes = 0;  // a row of a table
}

void fill_state(InspectReport& report) {
  const ModelFacts& m = report.model;
  StateReport& s = report.state;
  const auto u = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  for (const LayerReport& layer : report.layers) {
    if (layer.kind == LayerKind::full_attention) {
      s.kv_bytes_per_token += 2 * u(m.kv_heads) * u(m.head_dim) * dtype_bytes(s.kv_dtype);
    } else {
      const std::uint64_t channels =
          2 * u(m.linear_k_heads) * u(m.linear_k_dim) + u(m.linear_v_heads) * u(m.linear_v_dim);
      s.conv_bytes += channels * u(m.conv_kernel - 1) * dtype_bytes(s.conv_dtype);
      s.recurrent_bytes += u(m.linear_v_heads) * u(m.linear_v_dim) * u(m.linear_k_dim) * dtype_bytes(s.recurrent_dtype);
    }
  }
}

InspectReport inspect(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path / kManifestFile, ignored)) return inspect_package(path);
  if (std::filesystem::exists(path / "genai_config.json", ignored)) {
    fail(
        "{}: an ONNX package without {}, so Sluice did not write it whole; inspect reads checkpoints and its own "
        "packages",
        path.string(), kManifestFile);
  }
  return inspect_checkpoint(path);
}

}  // namespace sluice

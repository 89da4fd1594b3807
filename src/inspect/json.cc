#include "inspect/report.h"

namespace sluice {
namespace {

Json model_json(const ModelFacts& m) {
  Json out;
  out.set("model_type", m.model_type).set("family", m.family).set("layers", m.layers).set("hidden", m.hidden);
  out.set("vocab", m.vocab).set("context", m.context).set("intermediate", m.intermediate);
  out.set("heads", m.heads).set("kv_heads", m.kv_heads).set("head_dim", m.head_dim);
  out.set("linear_k_heads", m.linear_k_heads).set("linear_v_heads", m.linear_v_heads);
  out.set("linear_k_dim", m.linear_k_dim).set("linear_v_dim", m.linear_v_dim).set("conv_kernel", m.conv_kernel);
  out.set("experts", m.experts).set("experts_per_token", m.experts_per_token).set("tied", m.tied).set("rope", m.rope);
  return out;
}

Json part_json(const PartReport& part) {
  Json out;
  out.set("parameters", part.parameters).set("bytes", part.bytes);
  out.set("active_parameters", part.active_parameters).set("active_bytes", part.active_bytes);
  return out;
}

Json state_json(const StateReport& s) {
  Json out;
  out.set("kv_bytes_per_token", s.kv_bytes_per_token)
      .set("conv_bytes", s.conv_bytes)
      .set("recurrent_bytes", s.recurrent_bytes);
  out.set("kv_dtype", dtype_name(s.kv_dtype))
      .set("conv_dtype", dtype_name(s.conv_dtype))
      .set("recurrent_dtype", dtype_name(s.recurrent_dtype));
  out.set("crossover_tokens", crossover_tokens(s));
  return out;
}

Json tensor_json(const TensorReport& t) {
  Json out;
  out.set("name", t.name).set("dtype", dtype_name(t.dtype)).set("shape", Json::array(t.shape)).set("bytes", t.bytes);
  out.set("file", t.file)
      .set("offset", t.offset)
      .set("used", t.used)
      .set("use", t.use)
      .set("part", name_of(t.part))
      .set("layer", t.layer);
  return out;
}

Json layers_json(const std::vector<LayerReport>& layers) {
  Json::Array out;
  for (const LayerReport& layer : layers) {
    Json row;
    row.set("kind", layer.kind == LayerKind::full_attention ? "full_attention" : "linear_attention")
        .set("experts", layer.experts);
    row.set("mixer_bytes", layer.mixer_bytes).set("mlp_bytes", layer.mlp_bytes);
    out.push_back(std::move(row));
  }
  return Json(std::move(out));
}

}  // namespace

Json to_json(const InspectReport& report) {
  Json out;
  out.set("subject", report.subject == InspectReport::Subject::package ? "package" : "checkpoint")
      .set("path", report.path);
  out.set("model", model_json(report.model));
  Json build{Json::Object{}}, parts{Json::Object{}};
  for (const auto& [key, value] : report.build) build.set(key, value);
  for (std::size_t i = 0; i < kParts; ++i) parts.set(name_of(static_cast<Part>(i)), part_json(report.parts[i]));
  out.set("build", std::move(build)).set("total", part_json(report.total())).set("parts", std::move(parts));
  out.set("state", state_json(report.state)).set("layers", layers_json(report.layers));
  Json::Array tensors, files, operators;
  for (const TensorReport& tensor : report.tensors) tensors.push_back(tensor_json(tensor));
  for (const FileReport& file : report.files) files.push_back(Json().set("name", file.name).set("bytes", file.bytes));
  for (const OperatorCount& op : report.operators) {
    operators.push_back(Json().set("domain", op.domain).set("type", op.type).set("count", op.count));
  }
  out.set("tensors", Json(std::move(tensors)))
      .set("files", Json(std::move(files)))
      .set("operators", Json(std::move(operators)));
  out.set("unused_bytes", report.unused_bytes())
      .set("left_out", Json::array(report.left_out))
      .set("notices", Json::array(report.notices));
  return out;
}

}  // namespace sluice

// For tests: whole small checkpoints of any config, with single tensors changed.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "architecture/config_testing.h"
#include "base/float16.h"
#include "checkpoint/checkpoint_testing.h"
#include "weights/weight_source.h"

namespace sluice::testing {

inline std::string bf16_bytes(const std::vector<float>& values) {
  std::string out;
  for (const float value : values) {
    const std::uint16_t bits = to_bf16(value).bits;
    out.append(reinterpret_cast<const char*>(&bits), sizeof bits);
  }
  return out;
}

// Every tensor that the table asks for, in bf16: norms near their neutral values, the rest in (-1, 1). `form` picks how
// experts are stored: 0 fused, 1 one by one.
inline std::vector<TestTensor> make_tensors(const HybridConfig& config, const std::string& prefix = "model.",
                                            std::size_t form = 0) {
  std::vector<TestTensor> out;
  std::mt19937 random(7);
  std::uniform_real_distribution<float> small(-0.2f, 0.2f), wide(-1.0f, 1.0f);
  for (const WeightSpec& spec : weight_table(config)) {
    const float centre = spec.name.ends_with("linear.norm") ? 1.0f : 0.0f;
    for (const SourceTensor& source : spec.forms[std::min(form, spec.forms.size() - 1)].sources) {
      const std::string name = source.name == "lm_head.weight" ? source.name : prefix + source.name;
      if (std::any_of(out.begin(), out.end(), [&](const TestTensor& tensor) { return tensor.name == name; })) continue;
      std::vector<float> values(*element_count(source.shape));
      for (float& value : values) value = source.shape.size() == 1 ? centre + small(random) : wide(random);
      out.push_back({name, "BF16", source.shape, bf16_bytes(values)});
    }
  }
  return out;
}

inline TestTensor& tensor_named(std::vector<TestTensor>& tensors, std::string_view name) {
  const auto it =
      std::find_if(tensors.begin(), tensors.end(), [&](const TestTensor& tensor) { return tensor.name == name; });
  if (it == tensors.end()) throw std::runtime_error(fmt::format("no tensor {}", name));
  return *it;
}

inline void write_model(const TempFolder& folder, const ConfigText& config, const std::vector<TestTensor>& tensors) {
  folder.write("config.json", config.text());
  folder.write("model.safetensors", safetensors_bytes(tensors));
}

}  // namespace sluice::testing

// Reading the golden cases of tests/data/goldens; its README.md says what every tensor means.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"

namespace sluice::golden {

inline std::filesystem::path directory() { return std::filesystem::path(SLUICE_SOURCE_DIR) / "tests/data/goldens"; }

// The names of all cases that have expected outputs and a meta.json, sorted.
inline std::vector<std::string> cases() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory())) {
    if (std::filesystem::exists(entry.path() / "meta.json")) names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

// A name that GoogleTest accepts for a parameter.
inline std::string test_name(std::string name) {
  std::ranges::replace(name, '-', '_');
  return name;
}

// Expected values, widened: [rows, cols] with all leading extents in rows.
struct Table {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<double> values;
  const double* row(std::int64_t r) const { return values.data() + r * cols; }
};

class Case {
 public:
  explicit Case(const std::string& name)
      : path(directory() / name), meta(read_json(path / "meta.json")), expected(path / "expected.safetensors") {}

  std::size_t sequences() const { return meta.at("sequences", "meta").as_array("sequences").size(); }
  // "seq2" -> 2
  std::size_t sequence_named_by(const char* key) const {
    return static_cast<std::size_t>(std::stoi(meta.at(key, "meta").as_string(key).substr(3)));
  }
  double noise(const char* key) const { return meta.at("noise", "meta").at(key, "noise").as_number(key); }
  double state_noise(const char* kind) const {
    return meta.at("noise", "meta").at("state_fp32_vs_fp64", "noise").at(kind, "state_fp32_vs_fp64").as_number(kind);
  }
  double max_logit() const { return meta.at("logits", "meta").at("max_abs", "logits").as_number("max_abs"); }

  std::vector<std::int64_t> integers(const std::string& tensor) const {
    const TensorView& view = expected.at(tensor).view;
    SLUICE_CHECK(view.dtype == DType::i64);
    std::vector<std::int64_t> out(view.bytes.size() / sizeof(std::int64_t));
    std::memcpy(out.data(), view.bytes.data(), view.bytes.size());
    return out;
  }
  Table table(const std::string& tensor) const {
    const TensorView& view = expected.at(tensor).view;
    Table out;
    out.cols = view.shape.back();
    if (view.dtype == DType::i64) {
      const auto ids = integers(tensor);
      out.values.assign(ids.begin(), ids.end());
    } else {
      SLUICE_CHECK(view.dtype == DType::f32);
      std::vector<float> raw(view.bytes.size() / sizeof(float));
      std::memcpy(raw.data(), view.bytes.data(), view.bytes.size());
      out.values.assign(raw.begin(), raw.end());
    }
    out.rows = static_cast<std::int64_t>(out.values.size()) / out.cols;
    return out;
  }

  std::filesystem::path path;
  Json meta;
  SafetensorsFile expected;
};

}  // namespace sluice::golden

// Random GatedDeltaNet nodes for tests and benchmarks.
#pragma once

#include "tests/support/node_case.h"

namespace sluice::ops {

enum class QkvLayout { split, fused, dense, dense_fused, even };  // even: split, packed, without cu_seqlens

struct GatedDeltaNetCase {
  std::vector<std::int32_t> offsets{0, 3, 8};  // dense and even: equal lengths only
  std::int64_t k_heads = 2;
  std::int64_t v_heads = 4;
  std::int64_t k_dim = 8;
  std::int64_t v_dim = 6;
  std::string rule = "gated_delta";
  std::string gate_activation = "softplus";
  std::string beta_activation = "sigmoid";
  bool qk_l2_norm = true;
  bool per_key = false;
  bool dt_bias_per_key = false;
  float scale = 0.0f;
  QkvLayout layout = QkvLayout::split;
  DType dtype = DType::f32;
  DType gate_dtype = DType::f32;
  bool initial_state = true;
  std::int64_t capacity = 0;
  bool capture_active = true;

  std::int64_t rows() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  std::int64_t tokens() const { return offsets.back(); }
};

NodeCase make_node(const GatedDeltaNetCase& c, std::uint64_t seed = 3);

}  // namespace sluice::ops

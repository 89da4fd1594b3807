// Random PagedAttention nodes, and their definition in double.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/support/node_case.h"

namespace sluice::ops {

struct PagedCase {
  std::vector<std::int32_t> offsets{0, 5, 6, 9};
  std::vector<std::int32_t> past{0, 11, 3};
  std::int64_t heads = 4;
  std::int64_t kv_heads = 2;
  std::int64_t head_dim = 16;
  std::int64_t block_size = 4;
  float scale = 0.0f;
  float softcap = 0.0f;
  std::int64_t window = -1;
  std::int64_t rotary_dim = 0;
  std::int64_t rotary_offset = 0;
  bool interleaved = false;
  bool norms = false;
  bool sink = false;
  bool slots = false;
  bool fused = false;
  bool metadata = false;
  DType dtype = DType::f32;
  DType cache = DType::f32;

  std::int64_t rows() const { return static_cast<std::int64_t>(past.size()); }
  std::int64_t tokens() const { return offsets.back(); }
  std::int64_t columns() const {
    std::int64_t longest = 1;
    for (std::size_t b = 0; b < past.size(); ++b) {
      longest = std::max<std::int64_t>(longest, past[b] + offsets[b + 1] - offsets[b]);
    }
    return (longest + block_size - 1) / block_size + 1;
  }
  std::int64_t blocks() const { return rows() * columns() + 2; }
};

NodeCase make_paged(const PagedCase& c);

struct PagedAnswer {
  TestTensor output;     // [tokens, heads * head_dim], f32
  TestTensor key_cache;  // as the operator leaves it, f32
  TestTensor value_cache;
};

// What the definition says of a node that make_paged made.
PagedAnswer define_paged(const PagedCase& c, const NodeCase& node);

}  // namespace sluice::ops

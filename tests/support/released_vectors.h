// tests/data/ort_vectors.json: what the released ONNX Runtime computed for inputs made up once.
#pragma once

#include <string>
#include <vector>

#include "tests/support/node_case.h"

namespace sluice::ops {

// A case of one node with the outputs it must give.
struct ReleasedVector {
  std::string name;
  NodeCase node;
  std::vector<TestTensor> outputs;
};

// Those of one operator. Throws Error when the file has none.
std::vector<ReleasedVector> released_vectors(std::string_view op);

// A LinearAttention case in packed form: rows of a batch one after another, states V-major.
struct LinearAttentionVector {
  std::string name;
  std::string rule;
  float scale = 0;
  std::int64_t q_heads = 0;
  std::int64_t k_heads = 0;
  std::int64_t v_heads = 0;
  bool beta_broadcast = false;      // beta [tokens, 1]
  TestTensor query, key, value;     // [tokens, heads, dim]
  TestTensor offsets;               // [B + 1]
  std::optional<TestTensor> decay;  // [tokens, Hv] or [tokens, Hv, dk]
  std::optional<TestTensor> beta;
  TestTensor state;        // [B, Hv, dv, dk], zeros where the case has none
  TestTensor output;       // [tokens, max(Hq, Hv), dv]
  TestTensor final_state;  // [B, Hv, dv, dk]
};

std::vector<LinearAttentionVector> linear_attention_vectors();

}  // namespace sluice::ops

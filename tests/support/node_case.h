// One node with its inputs: what tests, fuzzers and benchmarks hand to ONNX Runtime, or straight to the kernels.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "onnx/graph.h"
#include "tests/support/tensors.h"

namespace sluice::ops {

struct OutputSpec {
  DType dtype = DType::f32;
  std::size_t rank = 0;
};

// Inputs are named "i0", "i1", ..., outputs "o0", "o1", ...
struct NodeCase {
  std::string domain = "com.microsoft";
  std::string op;
  std::vector<std::optional<TestTensor>> inputs;
  std::vector<Attribute> attributes;
  std::vector<std::optional<OutputSpec>> outputs;
  std::set<std::size_t> initializers;  // inputs that are constants of the model
  bool fixed_shapes = false;           // declares the inputs' extents; otherwise each is a symbol of its own
};

struct Outcome {
  std::string error;                // empty: it ran
  std::vector<TestTensor> outputs;  // the listed ones

  const TestTensor& operator[](std::size_t i) const { return outputs.at(i); }
};

}  // namespace sluice::ops

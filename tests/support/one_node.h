// A model of one node, run by ONNX Runtime with our operators or with its own.
#pragma once

#include <onnxruntime_cxx_api.h>

#include <optional>
#include <string>

#include "kernels/cpu/level.h"
#include "tests/support/node_case.h"

namespace sluice::ops {

std::string serialize_case(const NodeCase& node);

// Null: ONNX Runtime's own kernels.
using Kernels = std::optional<Level>;

// One environment for the whole test program; prints nothing.
const Ort::Env& test_environment();
Ort::SessionOptions session_options(Kernels kernels, int threads = 1);

// A tensor over bytes that the caller keeps.
Ort::Value as_value(TestTensor& tensor);
TestTensor from_value(const Ort::Value& value);

// Loads and runs; what ONNX Runtime throws becomes Outcome::error.
Outcome run_node(const NodeCase& node, Kernels kernels, int threads = 1);

}  // namespace sluice::ops

// A node without ONNX Runtime: validators and kernels called the way the adapters call them.
#pragma once

#include "base/executor.h"
#include "kernels/cpu/level.h"
#include "tests/support/node_case.h"

namespace sluice::ops {

// What a validator throws becomes Outcome::error; anything else is let through. Outputs and scratch are allocated to
// size, so that a sanitizer sees every access beyond them.
Outcome run_direct(const NodeCase& node, Level level, Executor& executor);

}  // namespace sluice::ops

// What each runtime can run: one row a target. Measured on ONNX Runtime 1.32.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "package/manifest.h"
#include "target/plan.h"

namespace sluice {

// A layout with a recurrence, and the gates it takes; the first is the default.
struct Combination {
  Layout layout;
  Recurrence recurrence;
  std::span<const Gates> gates;
};

// A dtype the target does not compute in, and why.
struct MissingDType {
  DType dtype;
  std::string_view reason;
};

struct Capability {
  Target target;
  std::string_view runtime;                   // in messages
  std::span<const Combination> combinations;  // the first is the default
  std::span<const MissingDType> missing;      // activation dtypes; f32, f16 and bf16 otherwise run
  DType default_activation = DType::f32;
  // Storage other than the activation dtype: read in place by our Linear, widened when the runtime loads, or not at
  // all.
  enum class OtherStorage { in_place, widened_at_load, refused } other_storage = OtherStorage::refused;
  LinearForm linear = LinearForm::gemm;
  std::string_view no_f32_attention;    // why attention cannot run in f32; empty: it can
  std::int64_t head_dim_multiple = 1;   // of the attention kernel
  bool experts_any_gate = false;        // experts with gelu_tanh as well as silu
  std::int64_t default_block_size = 0;  // tokens; 0: no paged cache
  bool block_size_power_of_two = false;
  bool pins_kv_blocks = false;  // the pool's size is part of the package
};

const Capability& capability(Target target);

}  // namespace sluice

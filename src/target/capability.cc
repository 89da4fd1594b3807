#include "target/capability.h"

#include "base/error.h"

namespace sluice {
namespace {

constexpr Gates kEffective[] = {Gates::effective};
constexpr Gates kRawOrEffective[] = {Gates::raw, Gates::effective};

constexpr Combination kDenseLinear{Layout::dense, Recurrence::linear_attention, kEffective};
constexpr Combination kDenseDelta{Layout::dense, Recurrence::gated_delta_net, kRawOrEffective};
constexpr Combination kPackedDelta{Layout::packed, Recurrence::gated_delta_net, kRawOrEffective};
constexpr Combination kPackedVarlen{Layout::packed, Recurrence::varlen_linear_attention, kEffective};

constexpr Combination kOrtCpuCombinations[] = {kDenseLinear, kDenseDelta};
constexpr Combination kOrtCudaCombinations[] = {kPackedDelta, kDenseLinear, kDenseDelta};
constexpr Combination kSluiceCombinations[] = {kPackedDelta, kPackedVarlen};

constexpr MissingDType kOrtCpuMissing[] = {{DType::bf16, "ONNX Runtime has no bf16 matrix product on a CPU"}};
constexpr MissingDType kSluiceMissing[] = {{DType::f16, "sluice.Linear and sluice.MoE compute in fp32"},
                                           {DType::bf16, "sluice.Linear and sluice.MoE compute in fp32"}};

constexpr Capability kRows[] = {
    {.target = Target::ort_cpu,
     .runtime = "stock ONNX Runtime on a CPU",
     .combinations = kOrtCpuCombinations,
     .missing = kOrtCpuMissing,
     .default_activation = DType::f32,
     .other_storage = Capability::OtherStorage::widened_at_load,
     .no_f32_attention = {},
     .head_dim_multiple = 8},
    {.target = Target::ort_cuda,
     .runtime = "stock ONNX Runtime on CUDA",
     .combinations = kOrtCudaCombinations,
     .missing = {},
     .default_activation = DType::f16,
     .other_storage = Capability::OtherStorage::refused,
     .no_f32_attention = "PagedAttention and GroupQueryAttention have no fp32 kernel on CUDA",
     .head_dim_multiple = 8,
     .default_block_size = 256,
     .block_size_power_of_two = true},
    {.target = Target::sluice,
     .runtime = "ONNX Runtime on a CPU with libsluice_ops",
     .combinations = kSluiceCombinations,
     .missing = kSluiceMissing,
     .default_activation = DType::f32,
     .other_storage = Capability::OtherStorage::in_place,
     .linear = LinearForm::linear,
     .no_f32_attention = {},
     .experts_any_gate = true,
     .default_block_size = 16,
     .pins_kv_blocks = true},
};

}  // namespace

const Capability& capability(Target target) {
  for (const Capability& row : kRows) {
    if (row.target == target) return row;
  }
  check_failed("a capability row for every target", __FILE__, __LINE__);
}

}  // namespace sluice

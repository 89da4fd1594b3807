// What an export will build: options and config resolved against what the runtime can run. Every rule about which
// combinations are legal, which dtype a state has and what a runtime lacks is here and nowhere else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "architecture/hybrid_config.h"
#include "base/dtype.h"
#include "package/manifest.h"

namespace sluice {

// The runtimes: stock ONNX Runtime on CPU, stock ONNX Runtime on CUDA, ONNX Runtime on CPU with libsluice_ops.
enum class Target { ort_cpu, ort_cuda, sluice };
std::string_view name_of(Target) noexcept;  // "ort-cpu", "ort-cuda", "sluice"
std::optional<Target> target_from_name(std::string_view) noexcept;

// How matrices are stored: as in the checkpoint (tensor by tensor), or all in one dtype.
enum class WeightStorage { source, fp32, fp16, bf16 };
std::string_view name_of(WeightStorage) noexcept;
std::optional<WeightStorage> weight_storage_from_name(std::string_view) noexcept;

// As asked for; what is empty takes the target's default.
struct ExportOptions {
  Target target = Target::ort_cpu;
  std::optional<Layout> layout;
  std::optional<Recurrence> recurrence;
  std::optional<Gates> gates;
  std::optional<DType> activation;  // f32, f16 or bf16
  std::optional<WeightStorage> weights;
  std::optional<std::int64_t> num_layers;  // leading layers to keep
  bool prune_lm_head = false;
  std::int64_t state_update_capacity = 0;  // 0..8 tokens, packed gated-delta-net only
  std::optional<std::int64_t> kv_blocks;   // blocks of the pool, packed only
  std::optional<std::int64_t> block_size;  // tokens a block, packed only
  std::optional<std::int64_t> max_batch;   // requests a step, packed only
  // Tokens a sequence; also the rows of the position tables. Default: the model's positions, but within 1024..32768. More
  // than the model was made for is allowed and noticed.
  std::optional<std::int64_t> max_length;
};

// How a matrix product is written: stock Gemm over [out, in] rows, or our Linear, which reads any stored dtype in
// place.
enum class LinearForm { gemm, linear };
// Rotary positions: one plane, or three (multimodal sections).
enum class RopeForm { rotary, mrotary };

struct ExportPlan {
  Target target = Target::ort_cpu;
  Layout layout = Layout::dense;
  Recurrence recurrence = Recurrence::linear_attention;
  Gates gates = Gates::effective;
  DType activation = DType::f32;
  WeightStorage weights = WeightStorage::fp32;
  std::int64_t layers = 0;  // leading layers of the model that are built
  bool prune_lm_head = false;
  std::int64_t state_update_capacity = 0;  // tokens
  std::int64_t kv_blocks = 0;              // 0: the runtime decides (ort-cuda)
  std::int64_t block_size = 0;             // tokens
  std::int64_t max_batch = 0;              // requests
  std::int64_t max_length = 0;             // tokens; rows of the position tables
  std::int64_t chunk_size = 64;            // tokens; the hint GatedDeltaNet carries

  LinearForm linear = LinearForm::gemm;
  RopeForm rope = RopeForm::rotary;
  DType conv_state = DType::f32;       // the activation dtype
  DType recurrent_state = DType::f32;  // of linear-attention the activation dtype, of all others f32
  bool value_major_state = false;      // recurrent state [B,Hv,dv,dk] instead of [B,Hv,dk,dv]
  double qk_norm_epsilon = 1e-6;       // added to the sum of squares: 1e-6 in the graph, 1e-12 inside GatedDeltaNet
  std::vector<std::string> notices;    // what was decided for the user and matters

  // The dtype a matrix is stored in when the checkpoint holds it in `source`.
  DType stored(DType source) const;
};

// Throws Error, by name and with the reason, for every combination the target cannot run.
ExportPlan resolve(const HybridConfig& config, const ExportOptions& options);

// The same model cut to its leading layers, for whoever compares with a package cut alike.
HybridConfig leading_layers(const HybridConfig& config, std::int64_t layers);

}  // namespace sluice

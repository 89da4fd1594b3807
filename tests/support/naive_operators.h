// For tests: the operators that a stock runtime lacks, as their definitions read, in double. A packed graph then runs on
// the runtime's own kernels and these, and on nothing that Sluice ships.
#pragma once

struct OrtApiBase;
struct OrtSessionOptions;
struct OrtStatus;

namespace sluice {

// A RegisterOperators (session/session.h):
//   com.microsoft.PagedAttention in f32 and f16, without in-op rotation, norms, window, softcap, sink or slot mapping;
//   sluice.Linear and sluice.MoE with f32, f16 or bf16 weights.
OrtStatus* register_naive_operators(OrtSessionOptions* options, const OrtApiBase* base);

}  // namespace sluice

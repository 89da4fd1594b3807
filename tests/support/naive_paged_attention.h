// For tests: PagedAttention as its definition reads, f32 only, for a runtime that lacks it. Everything else in a packed
// graph then runs on the runtime's own kernels.
#pragma once

struct OrtApiBase;
struct OrtSessionOptions;
struct OrtStatus;

namespace sluice {

// A RegisterOperators (session/session.h): one operator, com.microsoft.PagedAttention, without in-op rotation, norms,
// window, softcap, sink or slot mapping.
OrtStatus* register_naive_paged_attention(OrtSessionOptions* options, const OrtApiBase* base);

}  // namespace sluice

// The parts of one work item of GatedDeltaNet at a SIMD level, each in a file of its own. A piece is at most
// kGatedDeltaNetChunk tokens of one row.
#pragma once

#include "kernels/cpu/gated_delta_net_plan.h"

namespace sluice::SLUICE_LEVEL {

// Room for a piece and the tokens a full vector or row block reads beyond it.
inline constexpr std::int64_t kGateCap = kGatedDeltaNetChunk + 16;

// The gates of one value head over a piece; entries beyond its tokens are zero.
struct HeadGates {
  alignas(64) float beta[kGateCap];       // 1 without a beta input
  alignas(64) float log_decay[kGateCap];  // g, at least -200; 0 for rules without decay
  alignas(64) float factor[kGateCap];     // exp(g)
  bool decays = false;                    // some rule with decay: otherwise every factor is 1
  bool falling = true;                    // every g is a number and at most 0
};

// One value head's part of a piece, for the token recurrence.
struct RecurrentHead {
  const HeadGates* gates = nullptr;
  const float* source = nullptr;      // [v_dim, k_dim] the state before the piece
  const float* source_end = nullptr;  // where the states end that the item reads next, one behind the other
  float* state = nullptr;             // [v_dim, k_dim] the state after it; may be source
  float* delta = nullptr;             // capsule: u of token t at delta + t * delta_stride, for t < captured
  std::int64_t delta_stride = 0;
  std::int64_t captured = 0;
};

// Gates of value head `head` for the tokens [begin, begin + count). With a per-key decay, log_decay, factor and falling mean
// nothing, and the factors go to workspace.factors.
void read_gates(const GatedDeltaNetArgs& args, std::int64_t begin, std::int64_t count, std::int64_t head,
                HeadGates& gates) noexcept;
void read_key_factors(const GatedDeltaNetArgs& args, const gdn::Workspace& workspace, std::int64_t begin,
                      std::int64_t count, std::int64_t head) noexcept;

// Has the memory system bring what the recurrence reads first of a state.
void fetch_first_rows(const GatedDeltaNetShape& shape, const float* state) noexcept;
// Reads keys, queries and values of the workspace; writes its outputs and the head's state.
void recurrent_piece(const gdn::Plan& plan, const gdn::Workspace& workspace, std::int64_t count,
                     const RecurrentHead& head) noexcept;

// What the heads of one key head share: transposed keys and queries, and their products.
void prepare_chunk(const gdn::Plan& plan, const gdn::Workspace& workspace, std::int64_t count) noexcept;
// One value head of a prepared chunk; `panel` holds its state.
void chunk_piece(const gdn::Plan& plan, const gdn::Workspace& workspace, std::int64_t count, const HeadGates& gates,
                 float* panel) noexcept;
// Between the state [v_dim, k_dim] and the chunked form's panels; a null state is all zeros.
void state_to_panel(const GatedDeltaNetShape& shape, const float* state, float* panel) noexcept;
void panel_to_state(const GatedDeltaNetShape& shape, const float* panel, float* state) noexcept;

}  // namespace sluice::SLUICE_LEVEL

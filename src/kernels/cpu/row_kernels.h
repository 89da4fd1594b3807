// The parts of the row kernels that are compiled once a level: a range of rows on one thread.
#pragma once

#include <cstdint>

#include "kernels/cpu/gated_add.h"
#include "kernels/cpu/gated_rms_norm.h"
#include "kernels/cpu/linear_attention_gate.h"
#include "kernels/cpu/mrope.h"

namespace sluice {

namespace avx2 {
void gated_add_rows(const GatedAddArgs& args, std::int64_t begin, std::int64_t end) noexcept;
void gated_rms_norm_groups(const GatedRmsNormArgs& args, std::int64_t begin, std::int64_t end) noexcept;
void linear_attention_gate_tokens(const LinearAttentionGateArgs& args, std::int64_t begin, std::int64_t end) noexcept;
void mrope_tokens(const MropeArgs& args, std::int64_t begin, std::int64_t end) noexcept;
}  // namespace avx2

namespace avx512 {
void gated_add_rows(const GatedAddArgs& args, std::int64_t begin, std::int64_t end) noexcept;
void gated_rms_norm_groups(const GatedRmsNormArgs& args, std::int64_t begin, std::int64_t end) noexcept;
void linear_attention_gate_tokens(const LinearAttentionGateArgs& args, std::int64_t begin, std::int64_t end) noexcept;
void mrope_tokens(const MropeArgs& args, std::int64_t begin, std::int64_t end) noexcept;
}  // namespace avx512

// The position stream frequency `frequency` is turned by, as MropeLayout says.
int mrope_stream(const MropeArgs& args, std::int64_t frequency) noexcept;

// Runs body(begin, end) over [0, rows) in pieces of about 16 K elements, so that a small call stays on its thread.
template <typename Body>
void for_row_pieces(Executor& executor, std::int64_t rows, std::int64_t row_elements, Body&& body) noexcept {
  constexpr std::int64_t kPieceElements = 16 << 10;
  const std::int64_t wanted = kPieceElements / (row_elements > 0 ? row_elements : 1);
  const std::int64_t piece = wanted > 0 ? wanted : 1;
  const std::int64_t pieces = rows / piece + (rows % piece != 0);
  const auto run = [&](std::int64_t i) noexcept {
    const std::int64_t begin = i * piece;
    body(begin, rows - begin < piece ? rows : begin + piece);
  };
  if (pieces == 1) return run(0);
  parallel_for(executor, pieces, run);
}

}  // namespace sluice

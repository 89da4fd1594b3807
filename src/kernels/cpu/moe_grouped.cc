// The mixture at the vector levels: (token, rank) pairs are put in the order of their experts, and each expert's
// products run over its own pairs, in linear.h's order whatever their number.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/linear_core.h"
#include "kernels/cpu/moe_core.h"
#include "kernels/cpu/rounding.h"

namespace sluice {
namespace {

// What a chunk of tokens needs; slots are (token, rank) pairs in the order of their experts.
struct Scratch {
  float* p;              // [tokens, experts]
  float* weight;         // [tokens, k]
  std::int32_t* chosen;  // [tokens, k] expert
  std::int32_t* slot;    // [tokens, k]
  std::int32_t* token;   // [slots] of the chunk
  std::int32_t* first;   // [experts + 1] first slot
  std::int32_t* item;    // [experts + 1] first work item
  float* hidden;         // [slots, intermediate]: the gate's product, then gated
  float* up;             // [slots, intermediate]
  float* out;            // [slots, hidden]
  std::byte* packed;     // [slots] rows of x, later of hidden, as the level's products take them
};

// Tokens worked on together: all, unless their slots would take more than about 128 MB.
std::int64_t chunk_tokens(const MoeShape& shape) noexcept {
  constexpr std::int64_t kBudget = (std::int64_t{128} << 20) / 4;
  const std::int64_t floats = shape.k * (2 * shape.intermediate + shape.hidden) + shape.experts;
  return std::clamp<std::int64_t>(kBudget / std::max<std::int64_t>(floats, 1), 64,
                                  std::max<std::int64_t>(shape.tokens, 64));
}

// The matrix by which x is multiplied, and that by which the gated hidden values are.
WeightView in_matrix(const MoeArgs& args, const ExpertWeights& weights, std::int64_t expert) noexcept {
  return expert_matrix(weights, expert, args.shape.intermediate, args.shape.hidden);
}
WeightView out_matrix(const MoeArgs& args, std::int64_t expert) noexcept {
  return expert_matrix(args.down, expert, args.shape.hidden, args.shape.intermediate);
}

// Lays the arrays out from `base`; returns their end. A null base measures.
std::byte* lay_out(Level level, const MoeArgs& args, std::byte* base, Scratch& s) noexcept {
  const MoeShape& shape = args.shape;
  const std::int64_t tokens = std::min(chunk_tokens(shape), shape.tokens);
  const std::int64_t slots = tokens * shape.k;
  std::uintptr_t at = reinterpret_cast<std::uintptr_t>(base);
  const auto take = [&at](auto*& array, std::int64_t count) {
    at = (at + 63) / 64 * 64;
    array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(at);
    at += static_cast<std::uintptr_t>(count) * sizeof(*array);
  };
  take(s.p, tokens * shape.experts);
  take(s.weight, slots);
  take(s.chosen, slots);
  take(s.slot, slots);
  take(s.token, slots);
  take(s.first, shape.experts + 1);
  take(s.item, shape.experts + 1);
  take(s.hidden, slots * shape.intermediate);
  take(s.up, slots * shape.intermediate);
  take(s.out, slots * shape.hidden);
  std::size_t packed = 0;
  for (const WeightView& weight : {in_matrix(args, args.gate, 0), in_matrix(args, args.up, 0), out_matrix(args, 0)})
    packed = std::max(packed, linear_packed_bytes(level, slots, weight));
  take(s.packed, static_cast<std::int64_t>(packed));
  return reinterpret_cast<std::byte*>(at);
}

// Slots in the order of experts, within an expert in the order of tokens.
void group(const MoeShape& shape, std::int64_t tokens, const Scratch& s) noexcept {
  const std::int64_t slots = tokens * shape.k;
  std::fill_n(s.first, shape.experts + 1, 0);
  for (std::int64_t i = 0; i < slots; ++i) ++s.first[s.chosen[i] + 1];
  for (std::int64_t e = 0; e < shape.experts; ++e) s.first[e + 1] += s.first[e];
  std::int32_t* next = s.item;  // not yet in use
  std::copy_n(s.first, shape.experts, next);
  for (std::int64_t i = 0; i < slots; ++i) {
    s.slot[i] = next[s.chosen[i]]++;
    s.token[s.slot[i]] = static_cast<std::int32_t>(i / shape.k);
  }
}

// A product of one expert's slots by some outputs of its matrix.
struct Piece {
  std::int64_t expert;
  std::int64_t slot;
  std::int64_t rows;
  std::int64_t out;
  std::int64_t outs;
};

// Runs body(piece) over all experts' slots by [outs, cols], each cut by its own shape.
template <typename Body>
void for_pieces(Level level, const MoeShape& shape, const Scratch& s, const WeightView& weight, Executor& executor,
                Body body) noexcept {
  const auto rows_of = [&](std::int64_t e) { return std::int64_t{s.first[e + 1]} - s.first[e]; };
  s.item[0] = 0;
  for (std::int64_t e = 0; e < shape.experts; ++e) {
    const LinearCut cut = linear_cut(level, rows_of(e), weight);
    const std::int64_t items = ceil_div(weight.rows, cut.outs) * ceil_div(rows_of(e), cut.rows);
    s.item[e + 1] = s.item[e] + static_cast<std::int32_t>(items);
  }
  parallel_for(executor, s.item[shape.experts], [&](std::int64_t item) noexcept {
    const std::int32_t* above = std::upper_bound(s.item, s.item + shape.experts + 1, static_cast<std::int32_t>(item));
    const std::int64_t e = above - s.item - 1;
    const LinearCut cut = linear_cut(level, rows_of(e), weight);
    const std::int64_t row_blocks = ceil_div(rows_of(e), cut.rows);
    const std::int64_t m = (item - s.item[e]) % row_blocks * cut.rows;
    const std::int64_t n = (item - s.item[e]) / row_blocks * cut.outs;
    body(Piece{e, s.first[e] + m, std::min(cut.rows, rows_of(e) - m), n, std::min(cut.outs, weight.rows - n)});
  });
}

// The rows of x that a piece's slots chose, by no weight yet.
LinearBlock rows_of_x(const MoeArgs& args, const float* x, const Scratch& s, std::int64_t slot,
                      std::int64_t rows) noexcept {
  LinearBlock block;
  block.x = x;
  block.x_stride = args.shape.hidden;
  block.x_rows = s.token + slot;
  block.rows = rows;
  return block;
}

LinearBlock rows_of_hidden(const MoeArgs& args, const Scratch& s, std::int64_t slot, std::int64_t rows) noexcept {
  LinearBlock block;
  block.x = s.hidden + slot * args.shape.intermediate;
  block.x_stride = args.shape.intermediate;
  block.rows = rows;
  return block;
}

// Packs every expert's rows, as rows(slot, count) gives them, for products with `weight`.
template <typename Rows>
void pack(Level level, const MoeArgs& args, const Scratch& s, const WeightView& weight, Executor& executor,
          Rows rows) noexcept {
  if (linear_packed_bytes(level, 1, weight) == 0) return;
  parallel_for(executor, args.shape.experts, [&](std::int64_t e) noexcept {
    LinearBlock block = rows(s.first[e], std::int64_t{s.first[e + 1]} - s.first[e]);
    block.weight = weight;
    linear_pack(block, s.packed + linear_packed_bytes(level, s.first[e], weight));
  });
}

// block.y = the block's rows by a piece's outputs of `weight`, [slots, weight.rows] from `to` on.
void multiply(Level level, LinearBlock block, const WeightView& weight, const Scratch& s, const Piece& piece,
              float* to) noexcept {
  block.weight = weight_rows(weight, piece.out, piece.outs);
  if (linear_packed_bytes(level, 1, weight) > 0)
    block.packed = s.packed + linear_packed_bytes(level, piece.slot, weight);
  block.y = to + piece.slot * weight.rows + piece.out;
  block.y_stride = weight.rows;
  linear_block(level, block);
}

void hidden_piece(Level level, const MoeArgs& args, const float* x, const Scratch& s, const Piece& piece) noexcept {
  const LinearBlock block = rows_of_x(args, x, s, piece.slot, piece.rows);
  multiply(level, block, in_matrix(args, args.gate, piece.expert), s, piece, s.hidden);
  multiply(level, block, in_matrix(args, args.up, piece.expert), s, piece, s.up);
  const std::int64_t stride = args.shape.intermediate, at = piece.slot * stride + piece.out;
  const GateBlock gated{args.activation, piece.rows, piece.outs, s.hidden + at, s.up + at, stride};
  return level == Level::avx2 ? avx2::gate_block(gated) : avx512::gate_block(gated);
}

// Tokens [first, first + tokens).
void run_chunk(Level level, const MoeArgs& args, std::int64_t first, std::int64_t tokens, const Scratch& s,
               Executor& executor) noexcept {
  constexpr std::int64_t kTokens = 8;  // a work item of the steps that go by token
  const MoeShape& shape = args.shape;
  const auto for_tokens = [&](auto body) noexcept {
    parallel_for(executor, ceil_div(tokens, kTokens), [&](std::int64_t item) noexcept {
      for (std::int64_t t = item * kTokens; t < std::min(tokens, (item + 1) * kTokens); ++t) body(t);
    });
  };
  for_tokens([&](std::int64_t t) noexcept {
    moe_route(args, first + t, s.p + t * shape.experts, s.chosen + t * shape.k, s.weight + t * shape.k);
  });
  group(shape, tokens, s);
  const float* x = args.x + first * shape.hidden;
  const WeightView gate = in_matrix(args, args.gate, 0), up = in_matrix(args, args.up, 0), down = out_matrix(args, 0);
  const bool gate_is_packed = linear_packed_bytes(level, 1, gate) > 0;  // the two may differ in their format
  pack(level, args, s, gate_is_packed ? gate : up, executor,
       [&](std::int64_t slot, std::int64_t rows) noexcept { return rows_of_x(args, x, s, slot, rows); });
  for_pieces(level, shape, s, gate, executor,
             [&](const Piece& piece) noexcept { hidden_piece(level, args, x, s, piece); });
  pack(level, args, s, down, executor,
       [&](std::int64_t slot, std::int64_t rows) noexcept { return rows_of_hidden(args, s, slot, rows); });
  for_pieces(level, shape, s, down, executor, [&](const Piece& piece) noexcept {
    const LinearBlock block = rows_of_hidden(args, s, piece.slot, piece.rows);
    multiply(level, block, out_matrix(args, piece.expert), s, piece, s.out);
  });
  for_tokens([&](std::int64_t t) noexcept {
    const MixRow row{shape.k,
                     shape.hidden,
                     s.out,
                     s.slot + t * shape.k,
                     s.weight + t * shape.k,
                     args.y + (first + t) * shape.hidden};
    return level == Level::avx2 ? avx2::mix_row(row) : avx512::mix_row(row);
  });
}

}  // namespace

std::size_t moe_scratch_bytes(Level level, const MoeArgs& args) noexcept {
  Scratch s;
  return reinterpret_cast<std::uintptr_t>(lay_out(level, args, nullptr, s)) + 63;
}

void moe_grouped(Level level, const MoeArgs& args, std::span<std::byte> scratch, Executor& executor) noexcept {
  Scratch s;
  lay_out(level, args, scratch.data(), s);
  const std::int64_t chunk = chunk_tokens(args.shape);
  for (std::int64_t first = 0; first < args.shape.tokens; first += chunk) {
    run_chunk(level, args, first, std::min(chunk, args.shape.tokens - first), s, executor);
  }
}

}  // namespace sluice

#include "tests/invariance/packed_server.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace sluice::testing {
namespace {

std::size_t bytes_of(const Shape& shape, DType dtype) { return byte_count(shape, dtype).value(); }

}  // namespace

PackedServer::PackedServer(const Session& session, std::int64_t blocks, std::uint32_t seed)
    : session_(session), block_size_(session.manifest().block_size) {
  for (std::int64_t b = 0; b < blocks; ++b) free_.push_back(static_cast<std::int32_t>(b));
  std::mt19937 random(seed);
  std::shuffle(free_.begin(), free_.end(), random);
  for (const StateInfo& state : session.graph().states) {
    const bool paged = state.kind == StateKind::paged_kv;
    pool_shapes_.push_back(paged ? state_shape(state, {.blocks = blocks, .block_size = block_size_}) : Shape{});
    // Pages start out as garbage: nothing may depend on what a page held before.
    pools_.emplace_back(paged ? bytes_of(pool_shapes_.back(), state.dtype) : 0, std::byte{0x7f});
  }
}

ServedRequest PackedServer::open(std::vector<std::int64_t> ids) const {
  ServedRequest request;
  request.ids = std::move(ids);
  for (const StateInfo& state : session_.graph().states) {
    const bool fixed = state.kind != StateKind::paged_kv;
    request.states.emplace_back(fixed ? bytes_of(state_shape(state, {.batch = 1}), state.dtype) : 0);
  }
  return request;
}

void PackedServer::give_blocks(ServedRequest& request, std::int64_t tokens) {
  while (static_cast<std::int64_t>(request.blocks.size()) * block_size_ < tokens) {
    SLUICE_CHECK(!free_.empty());
    request.blocks.push_back(free_.back());
    free_.pop_back();
  }
}

void PackedServer::step(const std::vector<Piece>& pieces) {
  const auto& states = session_.graph().states;
  const auto batch = static_cast<std::int64_t>(pieces.size());
  std::vector<std::int64_t> ids;
  std::vector<std::int32_t> offsets{0}, past;
  std::size_t widest = 1;
  for (const Piece& piece : pieces) {
    const auto begin = piece.request->ids.begin() + piece.request->done;
    ids.insert(ids.end(), begin, begin + piece.tokens);
    offsets.push_back(static_cast<std::int32_t>(ids.size()));
    past.push_back(static_cast<std::int32_t>(piece.request->done));
    give_blocks(*piece.request, piece.request->done + piece.tokens);
    widest = std::max(widest, piece.request->blocks.size());
  }
  std::vector<std::int32_t> table;
  for (const Piece& piece : pieces) {
    table.insert(table.end(), piece.request->blocks.begin(), piece.request->blocks.end());
    table.resize(table.size() + widest - piece.request->blocks.size(), -1);
  }
  std::vector<std::vector<std::byte>> rows(states.size());
  std::vector<StateBinding> bindings;
  for (std::size_t s = 0; s < states.size(); ++s) {
    Shape shape = pool_shapes_[s];
    std::vector<std::byte>* memory = &pools_[s];
    if (states[s].kind != StateKind::paged_kv) {
      shape = state_shape(states[s], {.batch = batch});
      for (const Piece& piece : pieces)
        rows[s].insert(rows[s].end(), piece.request->states[s].begin(), piece.request->states[s].end());
      memory = &rows[s];
    }
    const TensorRef tensor{states[s].dtype, shape, memory->data(), memory->size()};
    bindings.push_back({tensor, tensor});
  }
  const std::int64_t vocab = session_.manifest().model.vocab;
  std::vector<float> logits(ids.size() * static_cast<std::size_t>(vocab));
  PackedStep step;
  step.input_ids = ids;
  step.cu_seqlens = offsets;
  step.past_lengths = past;
  step.block_table = table;
  step.states = bindings;
  step.logits = {
      DType::f32, {static_cast<std::int64_t>(ids.size()), vocab}, logits.data(), logits.size() * sizeof(float)};
  run_step(session_, step);

  for (std::size_t b = 0; b < pieces.size(); ++b) {
    ServedRequest& request = *pieces[b].request;
    for (std::size_t s = 0; s < states.size(); ++s) {
      const std::size_t size = request.states[s].size();
      if (size > 0) std::memcpy(request.states[s].data(), rows[s].data() + b * size, size);
    }
    request.logits.insert(request.logits.end(), logits.begin() + offsets[b] * vocab,
                          logits.begin() + offsets[b + 1] * vocab);
    request.done += pieces[b].tokens;
  }
}

std::vector<float> PackedServer::cache_of(const ServedRequest& request) const {
  std::vector<float> out;
  for (std::size_t s = 0; s < pools_.size(); ++s) {
    if (pools_[s].empty()) continue;
    const auto width = static_cast<std::size_t>(pool_shapes_[s][2] * pool_shapes_[s][3]);
    const auto* pool = reinterpret_cast<const float*>(pools_[s].data());
    for (std::int64_t p = 0; p < request.done; ++p) {
      const std::int64_t slot =
          request.blocks[static_cast<std::size_t>(p / block_size_)] * block_size_ + p % block_size_;
      const float* row = pool + static_cast<std::size_t>(slot) * width;
      out.insert(out.end(), row, row + width);
    }
  }
  return out;
}

}  // namespace sluice::testing

// The smallest possible continuous-batching loop over a packed package: what the schedules of a test run on.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "session/session.h"
#include "session/step.h"

namespace sluice::testing {

// One request: its tokens, and what the model has made of them so far.
struct ServedRequest {
  std::vector<std::int64_t> ids;
  std::int64_t done = 0;  // tokens run
  std::vector<std::vector<std::byte>>
      states;                        // conv and recurrent states, one row each, in the order of graph().states
  std::vector<std::int32_t> blocks;  // of the pool, in the order of positions
  std::vector<float> logits;         // [done, vocab]
};

// A piece of one request that a step runs.
struct Piece {
  ServedRequest* request;
  std::int64_t tokens;
};

// Owns the KV pools; hands out blocks in a random order, so that pages lie anywhere.
class PackedServer {
 public:
  PackedServer(const Session& session, std::int64_t blocks, std::uint32_t seed);

  ServedRequest open(std::vector<std::int64_t> ids) const;
  // Runs one step over the pieces, in their order; every logits row is kept.
  void step(const std::vector<Piece>& pieces);
  // Keys and values of a request as the layers see them: [layers, 2, done, kv_heads * head_dim], whatever the pages.
  std::vector<float> cache_of(const ServedRequest& request) const;

 private:
  void give_blocks(ServedRequest& request, std::int64_t tokens);

  const Session& session_;
  std::int64_t block_size_;
  std::vector<std::int32_t> free_;
  std::vector<Shape> pool_shapes_;  // of the paged states, empty for the others
  std::vector<std::vector<std::byte>> pools_;
};

}  // namespace sluice::testing

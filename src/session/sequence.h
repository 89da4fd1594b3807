// One sequence on a session: its states, and the cutting of its tokens into steps. Serves dense and packed packages
// alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "session/session.h"
#include "session/step.h"

namespace sluice {

struct SequenceOptions {
  std::int64_t capacity = 0;  // tokens that the KV caches hold before they must grow; 0: grow as needed
  std::int64_t max_piece =
      0;  // tokens of one step at most; 0: what keeps the logits of a step under 128 MiB, at most 512
};

// Receives the logits of one token: `row` is its index within the tokens appended, `logits` [vocab] f32, valid in the
// call.
using LogitsSink = std::function<void(std::int64_t row, std::span<const float> logits)>;

class Sequence {
 public:
  // The session must outlive the sequence.
  explicit Sequence(const Session& session, const SequenceOptions& options = {});

  // Runs tokens through the graph, at most max_piece in a step (the default is a multiple of the chunk). `rows`
  // (ascending indices into `tokens`) says whose logits the sink gets, in that order; memory does not grow with their
  // number. With a pruned dense graph each wanted row ends a step. After an Error the states are undefined: reset() or
  // drop it.
  void append(std::span<const std::int64_t> tokens, std::span<const std::int64_t> rows, const LogitsSink& sink);
  // The same, returning the logits of the last token. [vocab]
  std::vector<float> append(std::span<const std::int64_t> tokens);

  std::int64_t length() const noexcept { return length_; }  // tokens so far
  void reset();                                             // back to no tokens; keeps the memory

  // A copy of state `index` of graph().states, f32, in one layout whatever the package's:
  // conv [channels, kernel - 1], recurrent [value_heads, dk, dv], key and value [kv_heads, length, head_dim].
  struct State {
    Shape shape;
    std::vector<float> values;
  };
  State state(std::size_t index) const;
  std::size_t state_bytes() const noexcept;  // memory that the states take now

 private:
  struct Buffer {  // one state's memory
    Shape shape;   // as bound, batch 1
    std::vector<std::byte> bytes;
  };

  void reserve(std::int64_t tokens);
  void grow(std::size_t index, const StateExtents& extents);
  std::int64_t piece_length(std::int64_t begin, std::int64_t count, std::span<const std::int64_t> rows) const noexcept;
  std::int64_t logits_row(std::int64_t token, std::size_t order, std::int64_t size) const noexcept;
  void run_piece(std::span<const std::int64_t> tokens, std::vector<std::int32_t> wanted);
  void deliver(std::int64_t row, std::int64_t slot, const LogitsSink& sink);

  const Session* session_;
  std::int64_t max_piece_ = 0;  // tokens of one step
  std::int64_t max_rows_ = 0;   // logits rows of one step
  std::int64_t length_ = 0;
  std::int64_t capacity_ = 0;              // tokens that the KV states hold
  std::vector<Buffer> states_;             // in the order of graph().states
  std::vector<std::int32_t> block_table_;  // [blocks]: block b is the b-th of the pool
  std::vector<std::byte> logits_;
  std::vector<float> row_;  // [vocab] of one token, converted
};

}  // namespace sluice

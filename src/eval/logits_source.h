// Anything that turns tokens into logits: a package on a runtime, the reference on a checkpoint, a file of logits.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/shape.h"
#include "package/manifest.h"

namespace sluice {

// A sequence of tokens and the positions at which logits are looked at. Logits at position p follow tokens 0 .. p.
struct TokenSequence {
  std::string name;  // "130 tokens", "seq2": for reports
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> positions;    // ascending
  std::vector<std::int64_t> next_tokens;  // [positions] the greedy token expected after each; empty: not asked
};

// What a sequence leaves behind in a layer, in one layout whoever made it:
// conv [channels, kernel - 1], recurrent [value_heads, dk, dv], key and value [kv_heads, tokens, head_dim].
struct LayerStateValues {
  std::int64_t layer = 0;
  std::string kind;  // "conv" | "recurrent" | "key" | "value"
  Shape shape;
  std::vector<float> values;
};

// Receives the logits [vocab] of one position; they are valid during the call.
using PositionSink = std::function<void(std::int64_t position, std::span<const float> logits)>;

class LogitsSource {
 public:
  virtual ~LogitsSource() = default;

  virtual std::string describe() const = 0;  // one line: what it is and where
  virtual std::int64_t vocab() const = 0;

  // Begins a sequence with empty states. `sequence` must stay unchanged until the next start().
  virtual void start(const TokenSequence& sequence) = 0;
  // Feeds the next `count` tokens of the sequence in one piece, and gives the sink the logits of those of its positions
  // that lie among them, in order. A source that does not know some of them leaves them out.
  virtual void feed(std::int64_t count, const PositionSink& sink) = 0;
  // The states after what has been fed, by layer; empty when the source has none.
  virtual std::vector<LayerStateValues> states() = 0;

  // The `count` most likely tokens in a row after `prompt`, each fed back; fewer when the source knows fewer. Ends the
  // sequence begun.
  virtual std::vector<std::int64_t> greedy(std::span<const std::int64_t> prompt, std::int64_t count) = 0;
};

// The index of the largest value; the lower one of equals. NaN is never the largest. -1 when all are NaN.
std::int64_t argmax(std::span<const float> row);

}  // namespace sluice

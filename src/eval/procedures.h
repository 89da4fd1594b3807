// The ways a sequence can reach a model, and the comparison of two sources over one of them.
#pragma once

#include <string>
#include <vector>

#include "eval/difference.h"
#include "eval/logits_source.h"

namespace sluice {

enum class Feeding { whole, cut, token_by_token, greedy };

struct Procedure {
  Feeding feeding = Feeding::whole;
  std::string name;
  std::string how;
};

// All, in the order of reports. `greedy_tokens` > 0 adds the greedy continuation.
std::vector<Procedure> procedures(std::int64_t greedy_tokens);

// Tokens of each piece of a sequence. Greedy: a sequence of prompt and continuation, the first position asked for being
// the prompt's last.
std::vector<std::int64_t> pieces(Feeding feeding, const TokenSequence& sequence);

// The positions looked at: all of a short sequence; of a long one the first, the last, and some between, 256 in all.
std::vector<std::int64_t> positions_to_compare(std::int64_t tokens);

// The prompt with the baseline's greedy continuation behind it, the tokens expected at every step of it. Empty ids when
// the baseline knows none.
TokenSequence greedy_sequence(LogitsSource& baseline, const TokenSequence& prompt, std::int64_t tokens);

// What one procedure found so far. Sequences are added one after another.
class ProcedureComparison {
 public:
  explicit ProcedureComparison(Procedure procedure) : procedure_(std::move(procedure)) {}
  // Feeds both sources alike, in pieces whose logits fit the memory bound, and compares what both know.
  void add(LogitsSource& baseline, LogitsSource& candidate, const TokenSequence& sequence);

  const Procedure& procedure() const { return procedure_; }
  const LogitsComparison& logits() const { return logits_; }
  std::int64_t sequences() const { return sequences_; }
  std::int64_t largest_piece() const { return largest_piece_; }
  // For each layer and kind the sequence with the largest difference, as a share of its largest value. Tolerances are 0.
  const std::vector<StateDifference>& states() const { return states_; }

 private:
  void compare_piece(LogitsSource& baseline, LogitsSource& candidate, const TokenSequence& sequence,
                     std::int64_t count);
  void keep_worst(std::vector<StateDifference> found);

  Procedure procedure_;
  LogitsComparison logits_;
  std::vector<StateDifference> states_;
  std::int64_t sequences_ = 0;
  std::int64_t largest_piece_ = 0;
};

}  // namespace sluice

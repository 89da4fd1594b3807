// How far one source's logits and states are from another's. Everything in double; lists are bounded.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/logits_source.h"

namespace sluice {

// Where a difference was found.
struct LogitsPlace {
  std::string sequence;
  std::int64_t position = 0;  // in the sequence, from 0
  std::int64_t token = 0;     // the vocabulary entry
  double baseline = 0, candidate = 0;
};

// A position where the two would choose different tokens.
struct Disagreement {
  std::string sequence;
  std::int64_t position = 0;
  std::int64_t baseline_token = 0, candidate_token = 0;
  // By how much the chooser prefers its token over the other's: the baseline's logits, or the candidate's where only
  // the expected token is known. Small: a near-tie that rounding may decide either way.
  double margin = 0;
};

// Differences of logits over any number of rows.
struct LogitsDifference {
  static constexpr std::size_t kListed = 16;  // disagreements kept; all are counted

  std::int64_t rows = 0;         // positions compared value by value
  std::int64_t tokens_only = 0;  // positions where the baseline knows the token alone
  std::int64_t outside = 0;      // of `rows`: those with a difference above the tolerance given
  std::int64_t not_finite = 0;   // candidate values that are NaN or infinite where the baseline's is finite
  double max_abs = 0;            // over all values of all rows; not finite values excepted
  double mean_abs = 0;
  double max_logit = 0;  // largest absolute value of the baseline
  double mean_kl = 0;    // of the softmax distributions, baseline || candidate, in nats
  double max_kl = 0;
  std::int64_t agreed = 0;                      // rows (tokens_only included) with the same top token
  std::optional<LogitsPlace> worst;             // of max_abs, or the first value that is not finite
  std::optional<LogitsPlace> first_divergence;  // the first position outside
  std::int64_t disagreed = 0;
  double largest_margin = 0;  // of all disagreements
  std::vector<Disagreement> disagreements;

  double agreement() const {
    return rows + tokens_only == 0 ? 1.0 : static_cast<double>(agreed) / static_cast<double>(rows + tokens_only);
  }
};

// Collects rows.
class LogitsComparison {
 public:
  // Two rows of the same position, [vocab] each.
  void add(std::string_view sequence, std::int64_t position, std::span<const float> baseline,
           std::span<const float> candidate);
  // A position where only the baseline's next token is known.
  void add_token(std::string_view sequence, std::int64_t position, std::int64_t token,
                 std::span<const float> candidate);
  // The largest absolute baseline logit so far: what a tolerance scales with.
  double max_logit() const { return difference_.max_logit; }
  // What was found; `tolerance` is what first_divergence and outside mean by a difference.
  LogitsDifference result(double tolerance) const;

 private:
  void disagree(Disagreement found);

  std::vector<LogitsPlace> row_worst_;  // [rows] the largest difference of each
  double sum_abs_ = 0;
  double sum_kl_ = 0;
  std::int64_t values_ = 0;
  LogitsDifference difference_;
};

// KL divergence of softmax(p) and softmax(q) in nats, from logits, through log-sum-exp: never negative by more than
// rounding, finite for finite logits.
double kl_divergence(std::span<const float> p, std::span<const float> q);

// One state of one layer at the end of a sequence.
struct StateDifference {
  std::int64_t layer = 0;
  std::string kind;
  std::string sequence;
  double max_abs = 0;    // infinite when a value is not finite, or when the shapes differ
  double scale = 0;      // largest absolute value of the baseline
  double tolerance = 0;  // on max_abs
  std::string note;      // what is wrong beside values: shapes that differ, a state that one side lacks
  bool within() const { return note.empty() && max_abs <= tolerance; }
};

// Pairs the states of two sources by layer and kind; `tolerance` is left at 0 for the caller to set.
std::vector<StateDifference> compare_states(std::string_view sequence, std::span<const LayerStateValues> baseline,
                                            std::span<const LayerStateValues> candidate);

}  // namespace sluice

#include "eval/procedures.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace sluice {
namespace {

constexpr std::int64_t kLogitsBytes = 64 << 20;   // of one piece, on either side
constexpr std::int64_t kComparedPositions = 256;  // of a long sequence
constexpr std::int64_t kSingleTokens = 64;        // fed one by one at the end of a long sequence
constexpr std::int64_t kOddPieces[] = {5, 1, 17, 3, 63, 2, 29};

std::int64_t rows_at_once(std::int64_t vocab) {
  return std::max<std::int64_t>(1, kLogitsBytes / static_cast<std::int64_t>(sizeof(float)) / vocab);
}

}  // namespace

std::vector<Procedure> procedures(std::int64_t greedy_tokens) {
  std::vector<Procedure> all = {
      {Feeding::whole, "whole prefill", "every sequence in one piece"},
      {Feeding::cut, "cut prefill", "pieces of 5, 1, 17, 3, 63, 2, 29 tokens in turn"},
      {Feeding::token_by_token, "token by token", "one token a step; of more than 256 the last 64"},
  };
  if (greedy_tokens > 0) {
    all.push_back(
        {Feeding::greedy, "greedy", fmt::format("the baseline's {} next tokens, each chosen alike", greedy_tokens)});
  }
  return all;
}

std::vector<std::int64_t> pieces(Feeding feeding, const TokenSequence& sequence) {
  const auto tokens = static_cast<std::int64_t>(sequence.ids.size());
  std::vector<std::int64_t> out;
  std::int64_t left = tokens;
  const auto take = [&](std::int64_t count) {
    if (count > 0) out.push_back(std::min(count, left)), left -= out.back();
  };
  switch (feeding) {
    case Feeding::whole:
      break;
    case Feeding::cut:
      while (left > 0) take(kOddPieces[out.size() % std::size(kOddPieces)]);
      break;
    case Feeding::token_by_token:
      if (tokens > kComparedPositions) take(tokens - kSingleTokens);
      while (left > 0) take(1);
      break;
    case Feeding::greedy:
      take(sequence.positions.front() + 1);
      while (left > 0) take(1);
      break;
  }
  take(left);
  return out;
}

std::vector<std::int64_t> positions_to_compare(std::int64_t tokens) {
  std::vector<std::int64_t> out;
  constexpr std::int64_t kEnds = kComparedPositions / 4;
  const std::int64_t between = tokens - 2 * kEnds;
  const std::int64_t stride = std::max<std::int64_t>(1, between / (kComparedPositions - 2 * kEnds));
  for (std::int64_t p = 0; p < tokens; ++p) {
    const bool end = p < kEnds || p >= tokens - kEnds;
    if (end || (p - kEnds) % stride == 0) out.push_back(p);
  }
  return out;
}

TokenSequence greedy_sequence(LogitsSource& baseline, const TokenSequence& prompt, std::int64_t tokens) {
  TokenSequence out{prompt.name, {}, {}, baseline.greedy(prompt.ids, tokens)};
  if (out.next_tokens.empty()) return out;
  out.ids = prompt.ids;
  out.ids.insert(out.ids.end(), out.next_tokens.begin(), out.next_tokens.end() - 1);
  for (std::size_t i = 0; i < out.next_tokens.size(); ++i) {
    out.positions.push_back(static_cast<std::int64_t>(prompt.ids.size() + i) - 1);
  }
  return out;
}

void ProcedureComparison::add(LogitsSource& baseline, LogitsSource& candidate, const TokenSequence& sequence) {
  baseline.start(sequence);
  candidate.start(sequence);
  const std::int64_t limit = rows_at_once(candidate.vocab());
  for (std::int64_t left : pieces(procedure_.feeding, sequence)) {
    while (left > 0) {
      const std::int64_t count = std::min(left, limit);
      compare_piece(baseline, candidate, sequence, count);
      largest_piece_ = std::max(largest_piece_, count);
      left -= count;
    }
  }
  const std::vector<LayerStateValues> expected = baseline.states();
  const std::vector<LayerStateValues> actual = expected.empty() ? expected : candidate.states();
  if (!actual.empty()) keep_worst(compare_states(sequence.name, expected, actual));
  ++sequences_;
}

void ProcedureComparison::compare_piece(LogitsSource& baseline, LogitsSource& candidate, const TokenSequence& sequence,
                                        std::int64_t count) {
  std::map<std::int64_t, std::vector<float>> rows;  // what the baseline knows, by position
  baseline.feed(count, [&](std::int64_t position, std::span<const float> logits) {
    rows[position].assign(logits.begin(), logits.end());
  });
  candidate.feed(count, [&](std::int64_t position, std::span<const float> logits) {
    const auto known = rows.find(position);
    if (known != rows.end()) {
      logits_.add(sequence.name, position, known->second, logits);
    } else if (!sequence.next_tokens.empty()) {
      const auto index = std::ranges::lower_bound(sequence.positions, position) - sequence.positions.begin();
      logits_.add_token(sequence.name, position, sequence.next_tokens[static_cast<std::size_t>(index)], logits);
    }
  });
}

void ProcedureComparison::keep_worst(std::vector<StateDifference> found) {
  const auto severity = [](const StateDifference& d) {
    if (!d.note.empty()) return std::numeric_limits<double>::infinity();
    return d.max_abs == 0 ? 0 : d.max_abs / d.scale;
  };
  for (StateDifference& d : found) {
    const auto known =
        std::ranges::find_if(states_, [&](const StateDifference& s) { return s.layer == d.layer && s.kind == d.kind; });
    if (known == states_.end()) {
      states_.push_back(std::move(d));
    } else if (severity(d) > severity(*known)) {
      *known = std::move(d);
    }
  }
}

}  // namespace sluice

// Proves a package: its logits, tokens and states against the checkpoint, a file of logits, or another package.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/progress.h"
#include "eval/difference.h"
#include "eval/tolerance.h"
#include "session/session.h"

namespace sluice {

struct VerifyOptions {
  std::filesystem::path package;
  // What the package is held against; at least one.
  std::optional<std::filesystem::path> checkpoint;  // through the reference
  std::optional<std::filesystem::path> expect;      // a safetensors file, see expected_source.h
  std::optional<std::filesystem::path> against;     // another package

  // Sequences for checkpoint and against: pseudo-random ids of these lengths, always the same ones, and the ids given.
  // Neither given: lengths of 1, 7, 65 and 130, as far as the package's context reaches.
  std::vector<std::int64_t> lengths;
  std::vector<std::vector<std::int64_t>> ids;
  std::int64_t greedy_tokens = 8;  // of the greedy continuation; 0: none
  bool single_precision = false;   // the reference in float: twice as fast, and as noisy as the package
  int threads = 0;                 // of the reference; 0: one a hardware thread
  // How a package is run, from its manifest; empty: stock operators, default options.
  std::function<SessionOptions(const Manifest&)> session_options;
};

// One way of feeding a sequence, over all sequences.
struct ProcedureResult {
  std::string name;  // "whole prefill"
  std::string how;   // "every sequence in one piece"
  std::int64_t sequences = 0;
  std::int64_t largest_piece = 0;  // tokens
  LogitsDifference logits;
  std::vector<StateDifference> states;  // the worst sequence of each layer and kind
  bool within = false;
};

// Everything held against one baseline. Where a mixture of experts is computed coarser than in f32, a rounding may choose
// another expert for a token, and its logits then differ by as much as the experts do: no tolerance of roundings covers
// that. Such packages may have kFlippedShare of their positions outside, and their states are not judged.
struct BaselineResult {
  static constexpr double kFlippedShare = 0.1;
  bool routing_may_flip = false;
  std::string baseline;  // what it is
  Tolerance tolerance;
  std::optional<RoundingNoise> noise;  // that the tolerance comes from, where the reference was there to measure it
  // Largest logit difference between the reference with the checkpoint's q/k epsilon and with the package's, where the
  // two differ and a checkpoint is given; it is no error of the package.
  std::optional<double> epsilon_effect;
  double allowed = 0;  // on logits: the tolerance, and the epsilon's effect where the baseline has the other
  std::vector<ProcedureResult> procedures;
  std::vector<std::string> reasons;  // why it is not within; empty: it is
  std::vector<std::string> notices;
};

struct VerifyReport {
  std::string package;  // what it is
  std::vector<BaselineResult> baselines;
  bool within() const;
};

// Throws Error for what cannot be compared: packages of other vocabularies, a checkpoint of another model, ids outside
// the vocabulary, sequences longer than the package's context, and when `progress` is cancelled. Logits in memory stay
// under 200 MB, however long the sequences and large the vocabulary.
VerifyReport verify(const VerifyOptions& options, Progress& progress);

// Pseudo-random ids below `vocab`, the same on every machine.
std::vector<std::int64_t> random_ids(std::int64_t count, std::int64_t vocab);

// A table by procedure, the tolerance and where it comes from, near-ties and the verdict: lines for a terminal.
std::string to_text(const VerifyReport& report);
Json to_json(const VerifyReport& report);

}  // namespace sluice

// Logits from a safetensors file, made anywhere by anyone:
//   seqN.input_ids [T] i64 or i32      for N = 0, 1, ... without gaps
//   seqN.logits_pos [P]                positions of the rows below, ascending; absent: all T
//   seqN.logits_f64 or seqN.logits [P, vocab] f64, f32, f16 or bf16; the first is preferred
//   seqN.greedy_ids [G]                optional: the greedy continuation
//   seqN.greedy_logits [G, vocab]      optional: row k chose greedy_ids[k]
#pragma once

#include <filesystem>
#include <memory>

#include "eval/logits_source.h"

namespace sluice {

class ExpectedSource : public LogitsSource {
 public:
  // The sequences of the file, with the positions it knows.
  virtual std::span<const TokenSequence> sequences() const = 0;
};

// Opens and checks the file: rows are read as they are asked for. Throws Error, naming file and tensor, for anything
// that is missing, of a wrong shape or dtype, out of order, out of the vocabulary, or not finite.
std::unique_ptr<ExpectedSource> open_expected(const std::filesystem::path& file);

}  // namespace sluice

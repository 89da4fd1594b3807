// Looks through the values of a model for what a damaged or wrongly converted checkpoint shows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/progress.h"
#include "weights/weight_source.h"

namespace sluice {

enum class FindingKind {
  not_finite,    // NaN or Inf in any weight
  shifted_norm,  // a zero-centred norm whose values centre on 1: somebody added 1 already
  centred_norm,  // linear_attn.norm, a plain weight, whose values centre on 0
  decay_range,   // A_log or dt_bias at which the decay of a token at rest is 0 or 1 in f32
  all_zero,      // a matrix of zeros
};

struct ValueFinding {
  FindingKind kind = FindingKind::not_finite;
  std::string tensor;         // checkpoint name of the (first) tensor concerned
  std::uint64_t element = 0;  // first element concerned, counted in that tensor
  std::uint64_t count = 0;    // elements concerned
  std::string message;        // one line: tensor, element, value, what it means
};

// small_tensors: norms, A_log, dt_bias and biases alone (microseconds). everything: reads the whole checkpoint once.
enum class ScanScope { small_tensors, everything };

// Findings in the order of the table. Streams: pages of large tensors are released behind the scan.
std::vector<ValueFinding> scan_values(const ModelSource& model, ScanScope scope, Executor& executor,
                                      Progress& progress);

// The first NaN or Inf of a piece, counted in its elements, and how many there are: for callers that stream anyway.
struct NonFinite {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};
std::optional<NonFinite> find_non_finite(const WeightPiece& piece) noexcept;

}  // namespace sluice

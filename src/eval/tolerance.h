// How far apart two correct computations of the same logits may be, derived from what they round.
//
// Every rounding is taken as an independent relative error: of the activation dtype where a result is stored, of f32
// where a sum accumulates, of the weight dtype where weights were narrowed. Over a forward pass they add up as a random
// walk:
//   walk = sqrt(stored * u_activation^2 + summed * u_f32^2 + products * u_weight^2)
// Norms, exponentials and the delta rule amplify that, each model by a factor of its own. Where the reference can run, the
// factor is measured: `noise` is how far its f32 results are from its f64 results on the same tokens, and
//   tolerance = kMeasuredMargin * noise * walk / (the walk of f32)
// Elsewhere it is assumed to be kMargin (float32 runs of the golden models differ from float64 by 0.3 to 4 times `walk`):
//   tolerance = kMargin * walk * the largest logit
// Where the baseline is rounded too, being another package, the difference is of two such walks, sqrt(2) times as long.
// The larger of the two holds for logits: the noise of few tokens is one draw, and a lucky one refused correct packages
// whose gate or activation another library rounds more coarsely (ten times the noise of the reference was seen).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "package/manifest.h"

namespace sluice {

// How far f32 results of the reference are from its f64 results.
struct RoundingNoise {
  double logits = 0;                     // largest difference of a logit
  std::map<std::string, double> states;  // by kind: largest difference, as a share of the state's largest value
};

struct ToleranceBasis {
  const Manifest& manifest;     // whose roundings count
  DType narrowed = DType::f32;  // the dtype weights were rounded to on their way into the package; f32: they were not
  std::int64_t tokens = 0;      // of the longest sequence
  double max_logit = 0;         // largest absolute logit of the baseline
  std::optional<RoundingNoise> noise;
  bool rounded_baseline = false;  // it is a package, not f64
};

struct Tolerance {
  static constexpr double kMargin = 16;         // on a walk whose amplification is not known
  static constexpr double kMeasuredMargin = 8;  // on measured noise: another order of the sums is another draw of it
  static constexpr double kStateMargin =
      16;                              // the same for states: fewer values, so the noise seen is further from the most
  static constexpr double kFloor = 4;  // roundings of the largest value that are always allowed
  double logits = 0;                   // on the difference of a logit
  std::map<std::string, double> states;  // by kind, as a share of a state's largest value; measured ones alone
  double other_states = 0;               // the same for kinds that are not in `states`
  std::string formula;                   // the derivation of `logits` with its numbers, one line

  double of_state(const std::string& kind) const;
};

Tolerance derive_tolerance(const ToleranceBasis& basis);

// Half the distance between 1 and the next number of a float dtype: the largest relative error of one rounding.
double unit_roundoff(DType dtype);

}  // namespace sluice

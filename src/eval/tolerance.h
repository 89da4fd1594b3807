// How far apart two correct computations of the same logits may be, derived from what they round.
//
// Every rounding is taken as an independent relative error: of the activation dtype where a result is stored, of f32
// where a sum accumulates, of the weight dtype where weights were narrowed. Over a forward pass they add up as a random
// walk:
//   relative = sqrt(stored * u_activation^2 + summed * u_f32^2 + products * u_weight^2)
// Norms, exponentials and the delta rule amplify, and the largest of many values is looked at rather than the typical
// one: kMargin covers both. Its value comes from the golden cases: float32 runs of their models differ from float64 by
// 0.3 to 4 times `relative`.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "package/manifest.h"

namespace sluice {

struct Tolerance {
  static constexpr double kMargin = 16;
  double relative = 0;  // kMargin * the square root above
  double logits = 0;    // relative * the largest absolute logit of the baseline
  std::string formula;  // the derivation with its numbers, one line
};

// What a package's logits may differ by over sequences of `tokens` tokens, when the largest logit is `max_logit`.
// `narrowed` is the dtype weights were rounded to on their way into the package, f32 where they were not.
Tolerance derive_tolerance(const Manifest& manifest, DType narrowed, std::int64_t tokens, double max_logit);

// Half the distance between 1 and the next number of a float dtype: the largest relative error of one rounding.
double unit_roundoff(DType dtype);

}  // namespace sluice

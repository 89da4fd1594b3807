#include "eval/logits_source.h"

namespace sluice {

std::int64_t argmax(std::span<const float> row) {
  std::int64_t best = -1;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const bool number = row[i] == row[i];
    if (number && (best < 0 || row[i] > row[static_cast<std::size_t>(best)])) best = static_cast<std::int64_t>(i);
  }
  return best;
}

}  // namespace sluice

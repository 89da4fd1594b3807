#include "base/error.h"

namespace sluice {

void check_failed(const char* condition, const char* file, int line) {
  throw std::logic_error(
      fmt::format("internal error: {} does not hold at {}:{}; please report this", condition, file, line));
}

}  // namespace sluice

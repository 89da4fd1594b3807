#include "base/error.h"

namespace sluice {
namespace {

constexpr std::size_t kLongest = 2000;

std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  if (text.size() > kLongest) text.replace(kLongest / 2, text.size() - kLongest, " [...] ");
  return text;
}

}  // namespace

Error::Error(const std::string& message) : std::runtime_error(one_line(message)) {}

void check_failed(const char* condition, const char* file, int line) {
  throw std::logic_error(
      fmt::format("internal error: {} does not hold at {}:{}; please report this", condition, file, line));
}

}  // namespace sluice

// The one exception type for everything a user can cause, and a check for bugs.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace sluice {

// What a user did or gave that cannot work. The message is one line: the thing, expected, found, where, what to do.
class Error : public std::runtime_error {
 public:
  // Keeps the message one readable line whatever names it quotes: control characters become '?', and the middle of a
  // message beyond 2000 bytes is left out.
  explicit Error(const std::string& message);
};

// Throws Error with a formatted message.
template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void check_failed(const char* condition, const char* file, int line);

}  // namespace sluice

// A bug in Sluice when it fails, never something a user caused: prints nothing, aborts the program through
// std::logic_error.
#define SLUICE_CHECK(condition) \
  (static_cast<bool>(condition) ? void(0) : ::sluice::check_failed(#condition, __FILE__, __LINE__))

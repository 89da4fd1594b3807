// What a test asks of an action that should be refused: the one line the user would read.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"

namespace sluice::testing {

// The message of the Error that `action` throws; "no error" when it throws none.
inline std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace sluice::testing

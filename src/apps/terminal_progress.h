// Progress on a terminal: one line that is drawn over, on stderr, and only when stderr is a terminal.
#pragma once

#include <chrono>
#include <set>
#include <string>

#include "base/progress.h"

namespace sluice {

// While it lives, Ctrl-C and SIGTERM no longer end the program but make cancelled() true, so that the job cleans up.
class TerminalProgress final : public Progress {
 public:
  TerminalProgress(std::string verb, bool quiet);
  ~TerminalProgress() override;
  TerminalProgress(const TerminalProgress&) = delete;
  TerminalProgress& operator=(const TerminalProgress&) = delete;

  void advance(std::uint64_t done, std::uint64_t total) override;
  void notice(const std::string& text) override;
  bool cancelled() const override;

 private:
  void clear_line();

  std::string verb_;
  bool quiet_;
  bool terminal_;
  bool drawn_ = false;
  int signals_ = -1;
  mutable bool cancelled_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_draw_;
  std::set<std::string> seen_;
};

}  // namespace sluice

#include "apps/terminal_progress.h"

#include <fmt/format.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "apps/command.h"

namespace sluice {
namespace {

sigset_t interrupt_set() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

TerminalProgress::TerminalProgress(std::string verb, bool quiet)
    : verb_(std::move(verb)),
      quiet_(quiet),
      terminal_(::isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()) {
  const sigset_t set = interrupt_set();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);  // inherited by every thread started from here on
  signals_ = ::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

TerminalProgress::~TerminalProgress() {
  clear_line();
  cancelled();  // takes a pending signal, which would end the program when unblocked
  if (signals_ >= 0) ::close(signals_);
  const sigset_t set = interrupt_set();
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void TerminalProgress::advance(std::uint64_t done, std::uint64_t total) {
  if (quiet_ || !terminal_) return;
  const auto now = std::chrono::steady_clock::now();
  if (done < total && now - last_draw_ < std::chrono::milliseconds(100)) return;
  last_draw_ = now;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double percent = total == 0 ? 100.0 : 100.0 * static_cast<double>(done) / static_cast<double>(total);
  fmt::print(stderr, "\r\033[K{} {:5.1f} %  {} of {}  {}/s", verb_, percent, human_bytes(done), human_bytes(total),
             human_bytes(static_cast<std::uint64_t>(static_cast<double>(done) / (seconds > 1e-3 ? seconds : 1e-3))));
  std::fflush(stderr);
  drawn_ = true;
}

void TerminalProgress::notice(const std::string& text) {
  if (quiet_ || !seen_.insert(text).second) return;
  clear_line();
  fmt::print(stderr, "note: {}\n", text);
}

bool TerminalProgress::cancelled() const {
  signalfd_siginfo info{};
  if (!cancelled_ && signals_ >= 0) cancelled_ = ::read(signals_, &info, sizeof info) == sizeof info;
  return cancelled_;
}

void TerminalProgress::clear_line() {
  if (!drawn_) return;
  fmt::print(stderr, "\r\033[K");
  drawn_ = false;
}

}  // namespace sluice

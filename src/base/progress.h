// How a long job tells its caller what it does. Libraries never print: apps/ draws this, tests record it.
#pragma once

#include <cstdint>
#include <string>

namespace sluice {

class Progress {
 public:
  virtual ~Progress() = default;
  // `done` of `total` units (bytes unless the caller says otherwise) are finished.
  virtual void advance(std::uint64_t done, std::uint64_t total) { (void)done, (void)total; }
  // A thing the user should know: named tensor, key or file, and what was done about it.
  virtual void notice(const std::string& text) { (void)text; }
  // Asked between pieces of work; when true the job throws Error and leaves nothing behind.
  virtual bool cancelled() const { return false; }
};

}  // namespace sluice

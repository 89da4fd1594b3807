#include "apps/command.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <array>

namespace sluice {

void add_common(CLI::App& command, CommonOptions& options) {
  command.add_option("--threads", options.threads, "Threads to use; 0 is one a hardware thread")
      ->check(whole_number)
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command.add_flag("--quiet", options.quiet, "No progress and no notices on stderr");
  command.add_flag("--json", options.json, "Print the report as JSON on stdout");
}

std::filesystem::path program_folder() { return std::filesystem::read_symlink("/proc/self/exe").parent_path(); }

std::filesystem::path operator_library() {
  return (program_folder() / ".." / "lib" / "libsluice_ops.so").lexically_normal();
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes)
                   : fmt::format("{:.{}f} {}", value,
                                 value < 9.995   ? 2
                                 : value < 99.95 ? 1
                                                 : 0,
                                 kUnits[unit]);
}

std::uint64_t peak_resident_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace sluice

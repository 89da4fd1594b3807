// What the subcommands share: how they register, what main() runs, and the options that mean the same everywhere.
#pragma once

#include <CLI/CLI.hpp>

#include <charconv>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace sluice {

// Exit codes of every subcommand.
inline constexpr int kDone = 0;
inline constexpr int kAnswerIsNo = 1;  // verify outside its tolerance
inline constexpr int kWrongUsage = 2;
inline constexpr int kBadInput = 3;  // bad input or environment: one line on stderr

struct CommonOptions {
  int threads = 0;  // 0: one a hardware thread
  bool quiet = false;
  bool json = false;
};

// A subcommand declares itself on `app` and stores what is to run when it was chosen in `action`.
using Action = std::function<int()>;
void add_export(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);
void add_generate(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);

// --threads, --quiet and --json, with the same words everywhere.
void add_common(CLI::App& command, CommonOptions& options);

// A check for options that take integers: the parser takes "" for 0, "0x1" for 1 and cuts what is too large.
inline std::string whole_number(const std::string& text) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end ? "" : "\"" + text + "\" is no integer";
}

// The folder of the running program, links resolved: the operator library lies in ../lib of it.
std::filesystem::path program_folder();
std::filesystem::path operator_library();

// "3.08 GB", decimal.
std::string human_bytes(std::uint64_t bytes);
// Most memory this process had resident at once, in bytes; and the anonymous part of it now.
std::uint64_t peak_resident_bytes();

}  // namespace sluice

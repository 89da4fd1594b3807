// The only main(): reads the command line, runs one subcommand, turns errors into one line and an exit code.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

#include "apps/command.h"
#include "base/error.h"
#include "base/version.h"

namespace sluice {
namespace {

int run(int argc, char** argv) {
  CLI::App app("Exports Qwen hybrid checkpoints to ONNX, proves the export, and runs it on ONNX Runtime.", "sluice");
  app.set_version_flag("--version", std::string(version()));
  app.require_subcommand(1);
  app.footer("sluice COMMAND --help tells a command's options, with examples.");
  Action action;
  for (const auto add : {add_export, add_inspect, add_verify, add_generate, add_bench}) add(app, action);
  try {
    // The parser would say that a subcommand is missing, and not which word is none.
    const auto is_meant = [&](const CLI::App* command) { return argc > 1 && command->check_name(argv[1]); };
    if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(is_meant).empty()) throw CLI::ExtrasError({argv[1]});
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kWrongUsage;
  }
  return action();
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  try {
    const int code = sluice::run(argc, argv);
    std::cout.flush();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !std::cout) {
      sluice::fail("standard output: cannot be written, so the result is lost; is the disk full?");
    }
    return code;
  } catch (const sluice::Error& error) {
    fmt::print(stderr, "sluice: {}\n", error.what());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "sluice: out of memory\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "sluice: {}\n", error.what());
  }
  return sluice::kBadInput;
}

// How the subcommands open a package: with stock operators or this program's own, at the level asked for.
#pragma once

#include <CLI/CLI.hpp>

#include <filesystem>
#include <string>

#include "kernels/cpu/level.h"
#include "package/manifest.h"
#include "session/session.h"

namespace sluice {

struct SessionArguments {
  std::string operators = "auto";  // auto | stock | sluice
  std::string level;               // "": the best this processor has
  bool spin = false;
  bool no_prepack = false;
};

// --operators, --level, --spin and --no-prepack.
void add_session_options(CLI::App& command, SessionArguments& arguments);

// --level, or the best here. Throws Error for a level that this processor lacks.
Level chosen_level(const SessionArguments& arguments);

// The options a Session takes. `auto` uses stock operators where the package's target is stock ONNX Runtime on a CPU,
// so that what runs here is what runs there, and our own elsewhere. Throws Error for a level that this processor lacks.
SessionOptions session_options(const SessionArguments& arguments, const Manifest& manifest, int threads);

}  // namespace sluice

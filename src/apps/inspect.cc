// sluice inspect PATH: what a checkpoint or a package is, printed, as JSON, or drawn as a page; and whether its bytes are right.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <thread>

#include "apps/command.h"
#include "apps/terminal_progress.h"
#include "base/error.h"
#include "inspect/check.h"
#include "inspect/html.h"
#include "inspect/report.h"

namespace sluice {
namespace {

struct InspectArguments {
  CommonOptions common;
  std::string path;
  std::string html;
  bool check = false;
};

constexpr const char* kExamples = R"(
Examples:
  sluice inspect Qwen3.5-0.8B                    a checkpoint: layers, where its bytes are, where each tensor goes
  sluice inspect out --html out.html             a package, drawn as one page without scripts
  sluice inspect out --check                     every file against the manifest's XXH3
  sluice inspect Qwen3.5-0.8B --check            every weight for NaN and Inf
  sluice inspect out --json | jq .state
Exit code: 0; with --check 1 when something is wrong; 3 when PATH cannot be read.)";

void write_page(const std::string& path, const InspectReport& report) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << to_html(report);
  file.close();
  if (!file) fail("{}: cannot be written: {}", path, std::strerror(errno));
}

int run_inspect(const InspectArguments& a) {
  TerminalProgress progress("checking", a.common.quiet);
  std::optional<CheckReport> checked;
  if (a.check) {
    const int hardware = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    ThreadPool pool(a.common.threads > 0 ? a.common.threads : hardware);
    checked = check(a.path, pool, progress);
  }
  InspectReport report;
  try {
    report = inspect(a.path);
  } catch (const Error& error) {
    // A package too damaged to be shown has been checked all the same: that is the answer.
    if (!checked || checked->good()) throw;
    checked->problems.push_back(error.what());
    const Json json = Json().set("check", to_json(*checked));
    std::fputs((a.common.json ? json.dump() + "\n" : to_text(*checked)).c_str(), stdout);
    return kAnswerIsNo;
  }
  if (!a.html.empty()) write_page(a.html, report);
  if (a.common.json) {
    Json json = to_json(report);
    if (checked) json.set("check", to_json(*checked));
    std::fputs((json.dump() + "\n").c_str(), stdout);
  } else {
    std::fputs(to_text(report).c_str(), stdout);
    if (checked) std::fputs(("\n" + to_text(*checked)).c_str(), stdout);
    if (!a.html.empty() && !a.common.quiet) fmt::print(stderr, "wrote {}\n", a.html);
  }
  return checked && !checked->good() ? kAnswerIsNo : kDone;
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  auto a = std::make_shared<InspectArguments>();
  CLI::App* command = app.add_subcommand("inspect", "Show what a checkpoint or a package is");
  command->footer(kExamples);
  command->add_option("PATH", a->path, "Checkpoint folder, .safetensors file, or package folder")->required();
  command->add_option("--html", a->html,
                      "Write a page that draws it: layers, where the bytes are, state against KV growth");
  command->add_flag("--check", a->check, "Package: verify every file's hash. Checkpoint: look for NaN and Inf");
  add_common(*command, a->common);
  command->callback([a, &action] { action = [a] { return run_inspect(*a); }; });
}

}  // namespace sluice

// sluice verify PACKAGE: holds its logits, tokens and states against a checkpoint, a file of logits, another package.
#include "eval/verify.h"

#include <fmt/format.h>

#include <cstdio>

#include "apps/command.h"
#include "apps/package_session.h"
#include "apps/terminal_progress.h"
#include "base/error.h"

namespace sluice {
namespace {

struct VerifyArguments {
  CommonOptions common;
  SessionArguments session;
  std::string package;
  std::string checkpoint, expect, against;
  std::vector<std::int64_t> lengths, ids;
  std::int64_t greedy = 8;
  bool single_precision = false;
};

constexpr const char* kExamples = R"(
Examples:
  sluice verify out --checkpoint Qwen3.5-0.8B                 against a forward pass straight from the weights
  sluice verify out --expect logits.safetensors               against logits made anywhere (seqN.input_ids, seqN.logits)
  sluice verify out --against other                           against another package: one operator swapped, say
  sluice verify out --checkpoint Qwen3.5-0.8B --lengths 64,2000 --threads 2 --json
Exit code: 0 within tolerance, 1 outside, 3 when it could not be done.)";

VerifyOptions options_of(const VerifyArguments& a) {
  VerifyOptions o;
  o.package = a.package;
  if (!a.checkpoint.empty()) o.checkpoint = a.checkpoint;
  if (!a.expect.empty()) o.expect = a.expect;
  if (!a.against.empty()) o.against = a.against;
  o.lengths = a.lengths;
  if (!a.ids.empty()) o.ids.push_back(a.ids);
  o.greedy_tokens = a.greedy;
  o.single_precision = a.single_precision;
  o.threads = a.common.threads;
  o.session_options = [a](const Manifest& manifest) { return session_options(a.session, manifest, a.common.threads); };
  return o;
}

int run_verify(const VerifyArguments& a) {
  if (a.checkpoint.empty() && a.against.empty() && !(a.lengths.empty() && a.ids.empty())) {
    fail("--{}: --expect brings its own sequences; give --checkpoint or --against beside it",
         a.ids.empty() ? "lengths" : "ids");
  }
  TerminalProgress progress("verifying", a.common.quiet);
  const VerifyReport report = verify(options_of(a), progress);
  const std::string text = a.common.json ? to_json(report).dump() + "\n" : to_text(report);
  std::fputs(text.c_str(), stdout);
  return report.within() ? kDone : kAnswerIsNo;
}

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  auto a = std::make_shared<VerifyArguments>();
  CLI::App* command =
      app.add_subcommand("verify", "Prove a package against its checkpoint, logits, or another package");
  command->footer(kExamples);
  command->add_option("PACKAGE", a->package, "Package folder, as export wrote it")->required();
  CLI::Option_group* baselines = command->add_option_group("Against", "What to hold it against; one at least");
  baselines->add_option("--checkpoint", a->checkpoint,
                        "The checkpoint it was made from: our own forward pass in double");
  baselines->add_option(
      "--expect", a->expect,
      "A safetensors file: seqN.input_ids, seqN.logits_pos, seqN.logits (or logits_f64), seqN.greedy_ids");
  baselines->add_option("--against", a->against, "Another package of the same model");
  baselines->require_option(1, 3);
  command->add_option("--lengths", a->lengths, "Sequences of so many pseudo-random ids; default 1,7,65,130")
      ->delimiter(',')
      ->check(whole_number);
  command->add_option("--ids", a->ids, "A sequence of these ids, beside or instead of the lengths")
      ->delimiter(',')
      ->check(whole_number);
  command->add_option("--greedy", a->greedy, "Greedy tokens behind every sequence")
      ->check(whole_number)
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command->add_flag("--f32-reference", a->single_precision, "Reference in float: faster, as noisy as the package");
  add_session_options(*command, a->session);
  add_common(*command, a->common);
  command->callback([a, &action] { action = [a] { return run_verify(*a); }; });
}

}  // namespace sluice

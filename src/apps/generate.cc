// sluice generate PACKAGE --ids ...: greedy continuation of token ids.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <optional>

#include "apps/command.h"
#include "apps/package_session.h"
#include "base/error.h"
#include "base/json.h"
#include "session/sequence.h"
#include "tokenizer/token_decoder.h"

namespace sluice {
namespace {

struct GenerateArguments {
  CommonOptions common;
  SessionArguments session;
  std::string package;
  std::vector<std::int64_t> ids;
  std::string ids_file;
  std::int64_t max_tokens = 64;
  bool ignore_eos = false;
};

constexpr const char* kExamples = R"(
Examples:
  sluice generate out --ids 295,354,471,289,620
  sluice generate out --ids-file prompt.txt --max-tokens 256 --json
Ids are token ids; where the package has a tokenizer.json the text is shown as well.)";

// Ids separated by commas or white space.
std::vector<std::int64_t> read_ids(const std::string& file) {
  std::ifstream in(file);
  if (!in) fail("{}: cannot be opened; expected a file of token ids", file);
  if (std::filesystem::is_directory(file)) fail("{}: a folder; expected a file of token ids", file);
  std::vector<std::int64_t> ids;
  for (std::string word; in >> word;) {
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t comma = std::min(word.find(',', at), word.size());
      const std::string text = word.substr(at, comma - at);
      std::int64_t id = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
      if (error != std::errc() || end != text.data() + text.size()) fail("{}: \"{}\" is no token id", file, text);
      ids.push_back(id);
      at = comma + 1;
    }
  }
  return ids;
}

void check_ids(const std::vector<std::int64_t>& ids, const ModelInfo& model) {
  if (ids.empty()) fail("no token ids: give --ids 1,2,3 or --ids-file FILE");
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= model.vocab)
      fail("token id {} at position {} is outside the vocabulary of {}", ids[i], i, model.vocab);
  }
  if (static_cast<std::int64_t>(ids.size()) >= model.context_length) {
    fail("{} token ids leave no room for a new one in the package's context of {}; export with a larger --max-length",
         ids.size(), model.context_length);
  }
}

struct Generated {
  std::vector<std::int64_t> ids;
  std::string finish = "length";  // "eos" | "length" | "context"
  double prefill_seconds = 0, decode_seconds = 0;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Generated generate(const Session& session, const GenerateArguments& a) {
  const ModelInfo& model = session.manifest().model;
  const std::int64_t room = model.context_length - static_cast<std::int64_t>(a.ids.size());
  Generated out;
  Sequence sequence(session, {.capacity = static_cast<std::int64_t>(a.ids.size()) + std::min(a.max_tokens, room)});
  auto start = std::chrono::steady_clock::now();
  std::vector<float> logits = sequence.append(a.ids);
  out.prefill_seconds = seconds_since(start);
  start = std::chrono::steady_clock::now();
  while (static_cast<std::int64_t>(out.ids.size()) < a.max_tokens) {
    const std::int64_t next = std::max_element(logits.begin(), logits.end()) - logits.begin();
    if (!a.ignore_eos && std::find(model.eos_ids.begin(), model.eos_ids.end(), next) != model.eos_ids.end()) {
      out.finish = "eos";
      break;
    }
    out.ids.push_back(next);
    if (static_cast<std::int64_t>(out.ids.size()) >= a.max_tokens) break;
    if (static_cast<std::int64_t>(out.ids.size()) >= room) {
      out.finish = "context";
      break;
    }
    logits = sequence.append(std::span(&out.ids.back(), 1));
  }
  out.decode_seconds = seconds_since(start);
  return out;
}

int run_generate(GenerateArguments a) {
  if (!a.ids_file.empty()) a.ids = read_ids(a.ids_file);
  const Session session(a.package, session_options(a.session, read_manifest(a.package), a.common.threads));
  check_ids(a.ids, session.manifest().model);
  const Generated out = generate(session, a);
  const std::filesystem::path tokenizer = std::filesystem::path(a.package) / "tokenizer.json";
  std::optional<TokenDecoder> decoder;
  if (std::filesystem::exists(tokenizer)) decoder.emplace(tokenizer);
  if (a.common.json) {
    Json json;
    json.set("prompt_ids", Json::array(a.ids)).set("generated_ids", Json::array(out.ids)).set("finish", out.finish);
    if (decoder) json.set("text", decoder->decode(out.ids, true));
    json.set("prefill_seconds", out.prefill_seconds).set("decode_seconds", out.decode_seconds);
    fmt::print("{}\n", json.dump());
    return kDone;
  }
  fmt::print("{}\n", fmt::join(out.ids, ","));
  if (decoder) fmt::print("{} ->{}\n", decoder->decode(a.ids, true), decoder->decode(out.ids, true));
  if (!a.common.quiet) {
    fmt::print(stderr, "{} prompt tokens in {:.3f} s, {} new in {:.3f} s, finished by {}\n", a.ids.size(),
               out.prefill_seconds, out.ids.size(), out.decode_seconds, out.finish);
  }
  return kDone;
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  auto a = std::make_shared<GenerateArguments>();
  CLI::App* command = app.add_subcommand("generate", "Continue token ids greedily with a package");
  command->footer(kExamples);
  command->add_option("PACKAGE", a->package, "Package folder written by sluice export")->required();
  CLI::Option* ids = command->add_option("--ids", a->ids, "Prompt token ids, separated by commas")
                         ->delimiter(',')
                         ->check(whole_number);
  command->add_option("--ids-file", a->ids_file, "File of prompt token ids, separated by commas or white space")
      ->excludes(ids);
  command->add_option("--max-tokens", a->max_tokens, "New tokens at most")
      ->check(whole_number)
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->capture_default_str();
  command->add_flag("--ignore-eos", a->ignore_eos, "Go on after an end-of-sequence id");
  add_session_options(*command, a->session);
  add_common(*command, a->common);
  command->callback([a, &action] { action = [a] { return run_generate(*a); }; });
}

}  // namespace sluice

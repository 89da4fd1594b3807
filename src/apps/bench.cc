// sluice bench PACKAGE: prefill and decode speed of one sequence, beside this machine's roofs in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "apps/command.h"
#include "apps/package_session.h"
#include "base/error.h"
#include "base/json.h"
#include "kernels/cpu/roofs.h"
#include "session/sequence.h"

namespace sluice {
namespace {

struct BenchArguments {
  CommonOptions common;
  SessionArguments session;
  std::string package;
  std::vector<std::int64_t> prompts{128, 512};
  std::vector<int> threads{1, 2};
  std::int64_t decode = 32;
  int repeats = 3;
};

constexpr const char* kExamples = R"(
Examples:
  sluice bench out
  sluice bench out --prompt 512,2048 --decode 64 --bench-threads 2 --json
A decode step reads every weight once, so its roof is read bandwidth over the bytes a token reads; a prefill's roof is
FLOP/s over two FLOP a weight and token. Both roofs are measured in this run.)";

// Weights one token reads and multiplies by, from the package's index: the embedding is a look-up unless it is the
// head.
struct WeightCost {
  double bytes = 0, elements = 0;
};

WeightCost cost_of(const Manifest& m) {
  WeightCost cost;
  bool has_head = false;
  for (const WeightInfo& w : m.weights_index) has_head = has_head || w.canonical == "lm_head";
  for (const WeightInfo& w : m.weights_index) {
    if (w.canonical.empty() || (w.canonical == "embed_tokens" && has_head)) continue;
    // Of the routed experts a token reads the chosen ones alone.
    const bool routed =
        w.canonical.find(".moe.gate_up") != std::string::npos || w.canonical.find(".moe.down") != std::string::npos;
    const double share = routed && m.model.experts > 0
                             ? static_cast<double>(m.model.experts_per_token) / static_cast<double>(m.model.experts)
                             : 1.0;
    cost.bytes += share * static_cast<double>(w.bytes);
    cost.elements += share * static_cast<double>(w.bytes) / static_cast<double>(dtype_bytes(w.dtype));
  }
  return cost;
}

struct Row {
  int threads = 1;
  std::int64_t prompt = 0, decode = 0;
  double prefill_tokens_per_second = 0, decode_tokens_per_second = 0;
  double prefill_share = 0, decode_share = 0;  // of the roof
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Token ids that depend on the position alone, spread over the vocabulary.
std::vector<std::int64_t> prompt_ids(std::int64_t count, std::int64_t vocab) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(count));
  std::uint64_t x = 0x9e3779b97f4a7c15ull;
  for (std::int64_t& id : ids) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    id = static_cast<std::int64_t>((x >> 33) % static_cast<std::uint64_t>(vocab));
  }
  return ids;
}

Row measure(const Session& session, const BenchArguments& a, std::int64_t prompt, int threads) {
  Row row{threads, prompt, a.decode, 0, 0, 0, 0};
  const auto ids = prompt_ids(prompt, session.manifest().model.vocab);
  Sequence sequence(session, {.capacity = prompt + a.decode});
  double prefill = 1e30, decode = 1e30;
  for (int repeat = 0; repeat < a.repeats; ++repeat) {
    sequence.reset();
    auto start = std::chrono::steady_clock::now();
    std::vector<float> logits = sequence.append(ids);
    prefill = std::min(prefill, seconds_since(start));
    start = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < a.decode; ++i) {
      const std::int64_t next = std::max_element(logits.begin(), logits.end()) - logits.begin();
      logits = sequence.append(std::span(&next, 1));
    }
    decode = std::min(decode, seconds_since(start));
  }
  row.prefill_tokens_per_second = static_cast<double>(prompt) / prefill;
  row.decode_tokens_per_second = a.decode > 0 ? static_cast<double>(a.decode) / decode : 0;
  return row;
}

Json to_json(const std::vector<Row>& rows, Level level, const std::vector<Roofs>& roofs, const WeightCost& cost) {
  Json out;
  out.set("runtime", runtime_version());
  out.set("level", std::string(level_name(level)));
  out.set("weight_bytes_per_token", cost.bytes);
  out.set("peak_resident_bytes", peak_resident_bytes());
  Json::Array machine, results;
  for (const Roofs& r : roofs) {
    Json row;
    row.set("threads", r.threads).set("fma_gflops", r.fma_gflops).set("read_gbs", r.read_gbs);
    if (r.tile_gflops > 0) row.set("tile_gflops", r.tile_gflops);
    machine.push_back(std::move(row));
  }
  for (const Row& r : rows) {
    Json row;
    row.set("threads", r.threads).set("prompt", r.prompt).set("decode", r.decode);
    row.set("prefill_tokens_per_second", r.prefill_tokens_per_second).set("prefill_share_of_roof", r.prefill_share);
    row.set("decode_tokens_per_second", r.decode_tokens_per_second).set("decode_share_of_roof", r.decode_share);
    results.push_back(std::move(row));
  }
  out.set("roofs", Json(std::move(machine))).set("results", Json(std::move(results)));
  return out;
}

void print_table(const std::vector<Row>& rows, Level level, const std::vector<Roofs>& roofs, const WeightCost& cost) {
  for (const Roofs& r : roofs) {
    fmt::print("{}\n", describe(level, r));
  }
  fmt::print("a token reads {} of weights; ONNX Runtime {}\n\n", human_bytes(static_cast<std::uint64_t>(cost.bytes)),
             runtime_version());
  fmt::print("{:>7} {:>7}  {:>16} {:>10}  {:>16} {:>10}\n", "threads", "prompt", "prefill tok/s", "of FMA",
             "decode tok/s", "of read");
  for (const Row& r : rows) {
    fmt::print("{:>7} {:>7}  {:>16.1f} {:>9.0f}%  {:>16.2f} {:>9.0f}%\n", r.threads, r.prompt,
               r.prefill_tokens_per_second, 100 * r.prefill_share, r.decode_tokens_per_second, 100 * r.decode_share);
  }
  fmt::print("\npeak memory {}\n", human_bytes(peak_resident_bytes()));
}

int run_bench(const BenchArguments& a) {
  const Manifest manifest = read_manifest(a.package);
  const WeightCost cost = cost_of(manifest);
  for (const std::int64_t prompt : a.prompts) {
    if (prompt < 1) fail("--prompt {}: expected a length of at least 1", prompt);
    if (prompt > manifest.model.context_length || prompt + a.decode > manifest.model.context_length) {
      fail("--prompt {} with --decode {} does not fit the package's context of {}", prompt, a.decode,
           manifest.model.context_length);
    }
  }
  const Level level = chosen_level(a.session);
  std::vector<Row> rows;
  std::vector<Roofs> roofs;
  for (const int threads : a.threads) {
    const Session session(a.package, session_options(a.session, manifest, threads));
    ThreadPool pool(threads);
    roofs.push_back(measure_roofs(level, pool));
    for (const std::int64_t prompt : a.prompts) {
      Row row = measure(session, a, prompt, threads);
      row.prefill_share = row.prefill_tokens_per_second * 2 * cost.elements / (roofs.back().fma_gflops * 1e9);
      row.decode_share = row.decode_tokens_per_second * cost.bytes / (roofs.back().read_gbs * 1e9);
      rows.push_back(row);
    }
  }
  if (a.common.json) {
    fmt::print("{}\n", to_json(rows, level, roofs, cost).dump());
  } else {
    print_table(rows, level, roofs, cost);
  }
  return kDone;
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  auto a = std::make_shared<BenchArguments>();
  CLI::App* command = app.add_subcommand("bench", "Measure prefill and decode beside the machine's roofs");
  command->footer(kExamples);
  command->add_option("PACKAGE", a->package, "Package folder written by sluice export")->required();
  command->add_option("--prompt", a->prompts, "Prompt lengths, separated by commas")
      ->delimiter(',')
      ->check(whole_number)
      ->capture_default_str();
  command->add_option("--decode", a->decode, "Tokens to decode after each prompt")
      ->check(whole_number)
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command->add_option("--repeat", a->repeats, "Repetitions; the best counts")
      ->check(whole_number)
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--bench-threads", a->threads, "Thread counts to measure, separated by commas")
      ->delimiter(',')
      ->check(whole_number)
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  add_session_options(*command, a->session);
  add_common(*command, a->common);
  command->callback([a, &action] { action = [a] { return run_bench(*a); }; });
}

}  // namespace sluice

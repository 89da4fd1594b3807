#include "eval/verify.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "base/error.h"
#include "eval/company_source.h"
#include "eval/expected_source.h"
#include "eval/package_source.h"
#include "eval/procedures.h"
#include "eval/reference_source.h"

namespace sluice {
namespace {

constexpr double kCheckpointEpsilon = 1e-6;
constexpr std::int64_t kDefaultLengths[] = {1, 7, 65, 130};  // one token, less than a chunk, one more than one, three

// What every comparison of one verification shares.
struct Context {
  const VerifyOptions& options;
  const Session& session;
  LogitsSource& package;
  LogitsSource* company;     // packed packages only
  const ModelSource* model;  // with a checkpoint only
  Executor& executor;
  Progress& progress;
};

Session open_session(const VerifyOptions& options, const std::filesystem::path& package) {
  const SessionOptions how =
      options.session_options ? options.session_options(read_manifest(package)) : SessionOptions{};
  return Session(package, how);
}

TokenSequence sequence_of(std::string name, std::vector<std::int64_t> ids) {
  const auto tokens = static_cast<std::int64_t>(ids.size());
  return {std::move(name), std::move(ids), positions_to_compare(tokens), {}};
}

std::vector<TokenSequence> chosen_sequences(const VerifyOptions& options, const ModelInfo& model) {
  std::vector<TokenSequence> out;
  for (std::size_t i = 0; i < options.ids.size(); ++i) {
    if (options.ids[i].empty()) fail("sequence {} of the ids given has no token", i);
    for (const std::int64_t id : options.ids[i]) {
      if (id < 0 || id >= model.vocab) fail("id {} is outside the package's vocabulary of {}", id, model.vocab);
    }
    out.push_back(sequence_of(fmt::format("ids {}", i), options.ids[i]));
  }
  for (const std::int64_t length : options.lengths) {
    if (length <= 0) fail("a sequence of {} tokens cannot be verified: lengths are 1 or more", length);
    if (model.context_length > 0 && length > model.context_length) {
      fail("a sequence of {} tokens does not fit the package's context of {}", length, model.context_length);
    }
    out.push_back(sequence_of(fmt::format("{} tokens", length), random_ids(length, model.vocab)));
  }
  if (!out.empty()) return out;
  for (const std::int64_t length : kDefaultLengths) {
    if (model.context_length > 0 && length > model.context_length) continue;
    out.push_back(sequence_of(fmt::format("{} tokens", length), random_ids(length, model.vocab)));
  }
  return out;
}

// Tokens of greedy continuation that the package's context leaves room for behind a prompt.
std::int64_t greedy_room(const Context& context, const TokenSequence& prompt) {
  const std::int64_t limit = context.session.manifest().model.context_length;
  const std::int64_t asked = context.options.greedy_tokens;
  if (limit <= 0) return asked;
  return std::clamp<std::int64_t>(limit - static_cast<std::int64_t>(prompt.ids.size()) + 1, 0, asked);
}

// The dtype that weights lost digits to, f32 when they lost none.
DType narrowed_weights(const Context& context) {
  const std::optional<DType> stored = context.session.manifest().weights == "fp16"   ? std::optional(DType::f16)
                                      : context.session.manifest().weights == "bf16" ? std::optional(DType::bf16)
                                                                                     : std::nullopt;
  if (!stored) return DType::f32;
  if (context.model == nullptr) return *stored;
  const auto same = [&](const CanonicalWeight& w) { return w.dtype() == *stored; };
  return std::ranges::all_of(context.model->weights.weights(), same) ? DType::f32 : *stored;
}

std::vector<ProcedureComparison> run_procedures(const Context& context, LogitsSource& baseline,
                                                std::span<const TokenSequence> sequences) {
  std::vector<ProcedureComparison> comparisons;
  for (Procedure& p : procedures(context.options.greedy_tokens)) comparisons.emplace_back(std::move(p));
  if (context.company != nullptr) {
    comparisons.emplace_back(Procedure{Feeding::cut, "ragged batch", "cut as above, between two other rows"});
  }
  std::uint64_t done = 0;
  for (const TokenSequence& sequence : sequences) {
    for (ProcedureComparison& comparison : comparisons) {
      if (context.progress.cancelled()) fail("verification of {} was interrupted", context.options.package.string());
      context.progress.advance(done++, sequences.size() * comparisons.size());
      if (comparison.procedure().feeding != Feeding::greedy) {
        const bool ragged = &comparison == &comparisons.back() && context.company != nullptr;
        comparison.add(baseline, ragged ? *context.company : context.package, sequence);
        continue;
      }
      const TokenSequence continued = greedy_sequence(baseline, sequence, greedy_room(context, sequence));
      if (!continued.ids.empty()) comparison.add(baseline, context.package, continued);
    }
  }
  context.progress.advance(done, done);
  return comparisons;
}

std::int64_t longest(std::span<const TokenSequence> sequences) {
  std::size_t tokens = 0;
  for (const TokenSequence& s : sequences) tokens = std::max(tokens, s.ids.size());
  return static_cast<std::int64_t>(tokens);
}

void judge(BaselineResult& result) {
  for (ProcedureResult& p : result.procedures) {
    const std::size_t before = result.reasons.size();
    if (p.logits.not_finite > 0) {
      result.reasons.push_back(fmt::format("{}: {} logits are not finite", p.name, p.logits.not_finite));
    }
    if (!(p.logits.max_abs <= result.allowed)) {
      result.reasons.push_back(
          fmt::format("{}: a logit differs by {:.3g}, {:.3g} is allowed", p.name, p.logits.max_abs, result.allowed));
    }
    // Two rows within the tolerance can disagree on the top token only where it leads by twice the tolerance at most.
    if (p.logits.largest_margin > 2 * result.allowed) {
      result.reasons.push_back(
          fmt::format("{}: another top token, which leads by {:.3g}, more than a near-tie ({:.3g})", p.name,
                      p.logits.largest_margin, 2 * result.allowed));
    }
    for (const StateDifference& s : p.states) {
      if (s.within()) continue;
      const std::string what =
          s.note.empty() ? fmt::format("differs by {:.3g}, {:.3g} is allowed", s.max_abs, s.tolerance) : s.note;
      result.reasons.push_back(fmt::format("{}: {} state of layer {} {}", p.name, s.kind, s.layer, what));
    }
    p.within = result.reasons.size() == before;
  }
}

// What a comparison's tolerance is derived from.
struct Basis {
  Manifest manifest;         // whose roundings count
  std::int64_t tokens = 0;   // of the longest sequence
  double epsilon_share = 0;  // what another q/k epsilon adds to what logits may differ by
};

BaselineResult conclude(const Context& context, const LogitsSource& baseline,
                        std::span<const ProcedureComparison> comparisons, const Basis& basis) {
  BaselineResult result;
  result.baseline = baseline.describe();
  double max_logit = 0;
  for (const ProcedureComparison& c : comparisons) max_logit = std::max(max_logit, c.logits().max_logit());
  result.tolerance = derive_tolerance(basis.manifest, narrowed_weights(context), basis.tokens, max_logit);
  result.allowed = result.tolerance.logits + basis.epsilon_share;
  for (const ProcedureComparison& c : comparisons) {
    if (c.sequences() == 0) continue;
    ProcedureResult p{c.procedure().name, c.procedure().how, c.sequences(), c.largest_piece(), {}, {}, false};
    p.logits = c.logits().result(result.allowed);
    p.states = c.states(result.tolerance.relative);
    result.procedures.push_back(std::move(p));
  }
  judge(result);
  return result;
}

// How far apart the reference's logits are with two epsilons.
double epsilon_effect(LogitsSource& checkpoint, LogitsSource& contract, std::span<const TokenSequence> sequences) {
  ProcedureComparison comparison(procedures(0).front());
  for (const TokenSequence& sequence : sequences) comparison.add(checkpoint, contract, sequence);
  return comparison.logits().result(0).max_abs;
}

void check_model(const Context& context, const HybridConfig& config) {
  const ModelInfo& m = context.session.manifest().model;
  const auto check = [&](const char* what, std::int64_t package, std::int64_t checkpoint) {
    if (package != checkpoint)
      fail("the package's {} is {}, the checkpoint's {}: not the same model", what, package, checkpoint);
  };
  check("vocabulary", m.vocab, config.vocab);
  check("hidden size", m.hidden, config.hidden);
  if (m.layers > config.layers) check("number of layers", m.layers, config.layers);
}

ReferenceOptions reference_options(const Context& context, double epsilon) {
  return {epsilon, context.session.manifest().model.layers, context.options.single_precision};
}

BaselineResult verify_checkpoint(const Context& context, std::span<const TokenSequence> sequences) {
  const double epsilon = context.session.manifest().qk_norm_epsilon;
  const auto reference = make_reference_source(*context.model, reference_options(context, epsilon), context.executor);
  const auto comparisons = run_procedures(context, *reference, sequences);
  BaselineResult result = conclude(context, *reference, comparisons, {context.session.manifest(), longest(sequences)});
  if (epsilon != kCheckpointEpsilon) {
    const auto plain =
        make_reference_source(*context.model, reference_options(context, kCheckpointEpsilon), context.executor);
    result.epsilon_effect = epsilon_effect(*plain, *reference, sequences);
  }
  return result;
}

BaselineResult verify_expected(const Context& context, const std::filesystem::path& file) {
  const auto expected = open_expected(file);
  const std::int64_t vocab = context.package.vocab();
  if (expected->vocab() != vocab) {
    fail("{}: logits of {} entries, the package's vocabulary has {}", file.string(), expected->vocab(), vocab);
  }
  const std::span<const TokenSequence> sequences = expected->sequences();
  const double epsilon = context.session.manifest().qk_norm_epsilon;
  std::optional<double> effect;
  std::string notice;
  if (epsilon != kCheckpointEpsilon && context.model != nullptr) {
    const auto plain =
        make_reference_source(*context.model, reference_options(context, kCheckpointEpsilon), context.executor);
    const auto contract = make_reference_source(*context.model, reference_options(context, epsilon), context.executor);
    effect = epsilon_effect(*plain, *contract, sequences);
  } else if (epsilon != kCheckpointEpsilon) {
    notice = fmt::format(
        "the package normalises q and k with epsilon {:g}, checkpoints with {:g}: the effect counts as a difference "
        "here; "
        "with --checkpoint it is measured and allowed for",
        epsilon, kCheckpointEpsilon);
  }
  const auto comparisons = run_procedures(context, *expected, sequences);
  BaselineResult result =
      conclude(context, *expected, comparisons, {context.session.manifest(), longest(sequences), effect.value_or(0)});
  result.epsilon_effect = effect;
  if (!notice.empty()) result.notices.push_back(notice);
  return result;
}

BaselineResult verify_against(const Context& context, std::span<const TokenSequence> sequences) {
  const Session other = open_session(context.options, *context.options.against);
  const auto baseline = make_package_source(other, context.options.against->string());
  if (baseline->vocab() != context.package.vocab()) {
    fail("{}: a vocabulary of {}, the package's has {}", context.options.against->string(), baseline->vocab(),
         context.package.vocab());
  }
  const auto comparisons = run_procedures(context, *baseline, sequences);
  Basis basis{context.session.manifest(), longest(sequences)};
  if (unit_roundoff(other.manifest().activation) > unit_roundoff(basis.manifest.activation)) {
    basis.manifest.activation = other.manifest().activation;  // the coarser of the two
  }
  BaselineResult result = conclude(context, *baseline, comparisons, basis);
  const double a = context.session.manifest().qk_norm_epsilon, b = other.manifest().qk_norm_epsilon;
  if (a != b) {
    result.notices.push_back(fmt::format(
        "the packages normalise q and k with epsilons {:g} and {:g}: the effect counts as a difference here", a, b));
  }
  return result;
}

}  // namespace

bool VerifyReport::within() const {
  return std::ranges::all_of(baselines, [](const BaselineResult& b) { return b.reasons.empty(); });
}

std::vector<std::int64_t> random_ids(std::int64_t count, std::int64_t vocab) {
  std::vector<std::int64_t> ids;
  std::uint64_t state = static_cast<std::uint64_t>(count);
  for (std::int64_t i = 0; i < count; ++i) {  // splitmix64
    std::uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    ids.push_back(static_cast<std::int64_t>((z ^ z >> 31) % static_cast<std::uint64_t>(vocab)));
  }
  return ids;
}

VerifyReport verify(const VerifyOptions& options, Progress& progress) {
  if (!options.checkpoint && !options.expect && !options.against) {
    fail("nothing to hold {} against: give a checkpoint, a file of logits, or another package",
         options.package.string());
  }
  std::optional<ModelSource> model;
  if (options.checkpoint) model = open_model(*options.checkpoint);
  if (model) {
    for (const std::string& notice : model->notices()) progress.notice(notice);
  }
  const int threads =
      options.threads > 0 ? options.threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  ThreadPool executor(threads);
  const Session session = open_session(options, options.package);
  const auto package = make_package_source(session, options.package.string());
  const bool packed = session.manifest().layout == Layout::packed;
  const auto company = packed ? make_company_source(session, options.package.string()) : nullptr;
  const Context context{options, session, *package, company.get(), model ? &*model : nullptr, executor, progress};
  if (model) check_model(context, model->config);

  VerifyReport report{package->describe(), {}};
  if (options.expect) report.baselines.push_back(verify_expected(context, *options.expect));
  if (model || options.against) {
    const std::vector<TokenSequence> sequences = chosen_sequences(options, session.manifest().model);
    if (model) report.baselines.push_back(verify_checkpoint(context, sequences));
    if (options.against) report.baselines.push_back(verify_against(context, sequences));
  }
  return report;
}

}  // namespace sluice

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
DType narrowed_weights(const Context& context, const Manifest& manifest) {
  const std::optional<DType> stored = manifest.weights == "fp16"   ? std::optional(DType::f16)
                                      : manifest.weights == "bf16" ? std::optional(DType::bf16)
                                                                   : std::nullopt;
  if (!stored) return DType::f32;
  if (context.model == nullptr) return *stored;
  const auto same = [&](const CanonicalWeight& w) { return w.dtype() == *stored; };
  return std::ranges::all_of(context.model->weights.weights(), same) ? DType::f32 : *stored;
}

// A procedure, what goes through it, and what was found.
struct Trial {
  ProcedureComparison comparison;
  LogitsSource& candidate;
};

std::vector<Trial> package_trials(const Context& context) {
  std::vector<Trial> trials;
  for (Procedure& p : procedures(context.options.greedy_tokens))
    trials.push_back({ProcedureComparison(p), context.package});
  if (context.company != nullptr) {
    const Procedure ragged{Feeding::cut, "ragged batch", "cut as above, between two other rows"};
    trials.push_back({ProcedureComparison(ragged), *context.company});
  }
  return trials;
}

void run_trials(const Context& context, LogitsSource& baseline, std::span<const TokenSequence> sequences,
                std::span<Trial* const> trials) {
  std::uint64_t done = 0;
  const auto step = [&] {
    if (context.progress.cancelled()) fail("verification of {} was interrupted", context.options.package.string());
    context.progress.advance(done++, sequences.size() * trials.size());
  };
  for (const TokenSequence& sequence : sequences) {
    // The reference computes a sequence once as long as no other comes between: the continued one is last.
    for (Trial* trial : trials) {
      if (trial->comparison.procedure().feeding == Feeding::greedy) continue;
      step();
      trial->comparison.add(baseline, trial->candidate, sequence);
    }
    for (Trial* trial : trials) {
      if (trial->comparison.procedure().feeding != Feeding::greedy) continue;
      step();
      const TokenSequence continued = greedy_sequence(baseline, sequence, greedy_room(context, sequence));
      if (!continued.ids.empty()) trial->comparison.add(baseline, trial->candidate, continued);
    }
  }
  context.progress.advance(done, done);
}

std::vector<Trial*> pointers(std::vector<Trial>& trials) {
  std::vector<Trial*> out;
  for (Trial& trial : trials) out.push_back(&trial);
  return out;
}

ReferenceOptions reference_options(const Context& context, double epsilon) {
  return {epsilon, context.session.manifest().model.layers, context.options.single_precision};
}

std::unique_ptr<LogitsSource> make_reference(const Context& context, const ReferenceOptions& options) {
  return make_reference_source(*context.model, options, context.executor);
}

// What the reference tells about its own roundings and about the q/k epsilon: the reference in f32, and with the
// checkpoint's epsilon where the package has another, held against the reference that the package is held against.
class Calibration {
 public:
  explicit Calibration(const Context& context) {
    const double epsilon = context.session.manifest().qk_norm_epsilon;
    const Procedure whole = procedures(0).front();
    if (!context.options.single_precision) {
      ReferenceOptions options = reference_options(context, epsilon);
      options.single_precision = true;
      single_ = make_reference(context, options);
      noise_.emplace(Trial{ProcedureComparison(whole), *single_});
    }
    if (epsilon != kCheckpointEpsilon) {
      plain_ = make_reference(context, reference_options(context, kCheckpointEpsilon));
      effect_.emplace(Trial{ProcedureComparison(whole), *plain_});
    }
  }

  void add_to(std::vector<Trial*>& trials) {
    if (noise_) trials.push_back(&*noise_);
    if (effect_) trials.push_back(&*effect_);
  }
  std::optional<RoundingNoise> noise() const {
    if (!noise_) return std::nullopt;
    RoundingNoise out{noise_->comparison.logits().result(0).max_abs, {}};
    for (const StateDifference& s : noise_->comparison.states()) {
      if (s.scale > 0) out.states[s.kind] = std::max(out.states[s.kind], s.max_abs / s.scale);
    }
    return out;
  }
  std::optional<double> epsilon_effect() const {
    return effect_ ? std::optional(effect_->comparison.logits().result(0).max_abs) : std::nullopt;
  }

 private:
  std::unique_ptr<LogitsSource> single_, plain_;
  std::optional<Trial> noise_, effect_;
};

std::int64_t longest(std::span<const TokenSequence> sequences) {
  std::size_t tokens = 0;
  for (const TokenSequence& s : sequences) tokens = std::max(tokens, s.ids.size());
  return static_cast<std::int64_t>(tokens);
}

// Why a procedure is not within, in words.
std::vector<std::string> complaints(const BaselineResult& result, const ProcedureResult& p) {
  std::vector<std::string> out;
  const LogitsDifference& d = p.logits;
  if (d.not_finite > 0) out.push_back(fmt::format("{}: {} logits are not finite", p.name, d.not_finite));
  if (result.routing_may_flip) {
    const auto flips = static_cast<std::int64_t>(BaselineResult::kFlippedShare * static_cast<double>(d.rows)) + 1;
    if (d.outside > flips) {
      out.push_back(fmt::format("{}: {} positions differ by more than {:.3g}, {} are allowed for another expert",
                                p.name, d.outside, result.allowed, flips));
    }
    return out;
  }
  if (!(d.max_abs <= result.allowed)) {
    out.push_back(fmt::format("{}: a logit differs by {:.3g}, {:.3g} is allowed", p.name, d.max_abs, result.allowed));
  }
  // Two rows within the tolerance can disagree on the top token only where it leads by twice the tolerance at most.
  if (d.largest_margin > 2 * result.allowed) {
    out.push_back(fmt::format("{}: another top token, which leads by {:.3g}, more than a near-tie ({:.3g})", p.name,
                              d.largest_margin, 2 * result.allowed));
  }
  for (const StateDifference& s : p.states) {
    if (s.within()) continue;
    const std::string what =
        s.note.empty() ? fmt::format("differs by {:.3g}, {:.3g} is allowed", s.max_abs, s.tolerance) : s.note;
    out.push_back(fmt::format("{}: {} state of layer {} {}", p.name, s.kind, s.layer, what));
  }
  return out;
}

// What a comparison's tolerance is derived from.
struct Basis {
  Manifest manifest;        // whose roundings count
  std::int64_t tokens = 0;  // of the longest sequence
  std::optional<RoundingNoise> noise = std::nullopt;
  double epsilon_share = 0;       // what another q/k epsilon adds to what logits may differ by
  bool rounded_baseline = false;  // a package
};

BaselineResult conclude(const Context& context, const LogitsSource& baseline, std::span<const Trial> trials,
                        const Basis& basis) {
  BaselineResult result;
  result.baseline = baseline.describe();
  result.noise = basis.noise;
  double max_logit = 0;
  for (const Trial& t : trials) max_logit = std::max(max_logit, t.comparison.logits().max_logit());
  const DType narrowed = narrowed_weights(context, basis.manifest);
  result.routing_may_flip =
      basis.manifest.model.experts > 0 && !(basis.manifest.activation == DType::f32 && narrowed == DType::f32);
  result.tolerance =
      derive_tolerance({basis.manifest, narrowed, basis.tokens, max_logit, basis.noise, basis.rounded_baseline});
  result.allowed = result.tolerance.logits + basis.epsilon_share;
  for (const Trial& t : trials) {
    const ProcedureComparison& c = t.comparison;
    if (c.sequences() == 0) continue;
    ProcedureResult p{c.procedure().name, c.procedure().how, c.sequences(), c.largest_piece(), {}, c.states(), false};
    p.logits = c.logits().result(result.allowed);
    for (StateDifference& state : p.states) state.tolerance = result.tolerance.of_state(state.kind) * state.scale;
    const std::vector<std::string> found = complaints(result, p);
    p.within = found.empty();
    result.reasons.insert(result.reasons.end(), found.begin(), found.end());
    result.procedures.push_back(std::move(p));
  }
  return result;
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

BaselineResult verify_checkpoint(const Context& context, std::span<const TokenSequence> sequences) {
  const auto reference =
      make_reference(context, reference_options(context, context.session.manifest().qk_norm_epsilon));
  std::vector<Trial> trials = package_trials(context);
  Calibration calibration(context);
  std::vector<Trial*> all = pointers(trials);
  calibration.add_to(all);
  run_trials(context, *reference, sequences, all);
  BaselineResult result =
      conclude(context, *reference, trials, {context.session.manifest(), longest(sequences), calibration.noise()});
  result.epsilon_effect = calibration.epsilon_effect();
  return result;
}

BaselineResult verify_expected(const Context& context, const std::filesystem::path& file) {
  const auto expected = open_expected(file);
  if (expected->vocab() != context.package.vocab()) {
    fail("{}: logits of {} entries, the package's vocabulary has {}", file.string(), expected->vocab(),
         context.package.vocab());
  }
  const std::span<const TokenSequence> sequences = expected->sequences();
  const double epsilon = context.session.manifest().qk_norm_epsilon;
  Basis basis{context.session.manifest(), longest(sequences)};
  std::optional<double> effect;
  if (context.model != nullptr) {
    const auto reference = make_reference(context, reference_options(context, epsilon));
    Calibration calibration(context);
    std::vector<Trial*> own;
    calibration.add_to(own);
    run_trials(context, *reference, sequences, own);
    effect = calibration.epsilon_effect();
    basis.noise = calibration.noise();
    basis.epsilon_share = effect.value_or(0);
  }
  std::vector<Trial> trials = package_trials(context);
  run_trials(context, *expected, sequences, pointers(trials));
  BaselineResult result = conclude(context, *expected, trials, basis);
  result.epsilon_effect = effect;
  if (epsilon != kCheckpointEpsilon && !effect) {
    result.notices.push_back(
        fmt::format("the package normalises q and k with epsilon {:g}, checkpoints with {:g}: the effect counts as a "
                    "difference here; "
                    "with --checkpoint it is measured and allowed for",
                    epsilon, kCheckpointEpsilon));
  }
  return result;
}

// `noise`: measured on the same sequences, if it was.
BaselineResult verify_against(const Context& context, std::span<const TokenSequence> sequences,
                              const std::optional<RoundingNoise>& noise) {
  const std::filesystem::path& path = *context.options.against;
  const Session other = open_session(context.options, path);
  const auto baseline = make_package_source(other, path.string());
  if (baseline->vocab() != context.package.vocab()) {
    fail("{}: a vocabulary of {}, the package's has {}", path.string(), baseline->vocab(), context.package.vocab());
  }
  const Manifest &a = context.session.manifest(), &b = other.manifest();
  std::vector<Trial> trials = package_trials(context);
  run_trials(context, *baseline, sequences, pointers(trials));
  // The roundings of the coarser of the two count.
  const bool other_coarser = unit_roundoff(b.activation) > unit_roundoff(a.activation);
  BaselineResult result =
      conclude(context, *baseline, trials, {other_coarser ? b : a, longest(sequences), noise, 0, true});
  if (a.qk_norm_epsilon != b.qk_norm_epsilon) {
    result.notices.push_back(fmt::format(
        "the packages normalise q and k with epsilons {:g} and {:g}: the effect counts as a difference here",
        a.qk_norm_epsilon, b.qk_norm_epsilon));
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
    std::optional<RoundingNoise> noise;
    if (model) {
      report.baselines.push_back(verify_checkpoint(context, sequences));
      noise = report.baselines.back().noise;
    }
    if (options.against) report.baselines.push_back(verify_against(context, sequences, noise));
  }
  return report;
}

}  // namespace sluice

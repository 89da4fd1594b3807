// The verification as text and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "eval/verify.h"

namespace sluice {
namespace {

// A state's difference as a share of what is allowed.
double share(const StateDifference& s) {
  if (!s.note.empty()) return std::numeric_limits<double>::infinity();
  return s.max_abs == 0 ? 0 : s.max_abs / s.tolerance;
}

const StateDifference* worst_state(const ProcedureResult& p) {
  const auto worst = std::ranges::max_element(p.states, {}, share);
  return worst == p.states.end() ? nullptr : &*worst;
}

std::string state_cell(const ProcedureResult& p) {
  const StateDifference* s = worst_state(p);
  if (s == nullptr) return "-";
  if (!s->note.empty()) return fmt::format("layer {} {}: {}", s->layer, s->kind, s->note);
  return fmt::format("{:.1e} of {:.1e}, layer {} {}", s->max_abs, s->tolerance, s->layer, s->kind);
}

std::string row_of(const ProcedureResult& p) {
  const LogitsDifference& d = p.logits;
  const std::int64_t positions = d.rows + d.tokens_only;
  const auto number = [&](double value) { return d.rows == 0 ? std::string("-") : fmt::format("{:.2e}", value); };
  return fmt::format("  {:<16}{:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>13}  {}{}\n", p.name, positions, number(d.max_abs),
                     number(d.mean_abs), number(d.mean_kl), number(d.max_kl), fmt::format("{}/{}", d.agreed, positions),
                     state_cell(p), p.within ? "" : "   <- outside");
}

std::string place(const LogitsPlace& p) {
  return fmt::format("{}, position {}, token {}: {:.6g} instead of {:.6g}", p.sequence, p.position, p.token,
                     p.candidate, p.baseline);
}

// Where the tokens differ, a few lines a procedure.
std::string disagreements(const BaselineResult& b) {
  std::string out;
  for (const ProcedureResult& p : b.procedures) {
    if (p.logits.disagreed == 0) continue;
    out += fmt::format("  {}: {} positions with another top token", p.name, p.logits.disagreed);
    out += p.logits.largest_margin <= 2 * b.allowed ? ", all near-ties\n" : "\n";
    for (std::size_t i = 0; i < std::min<std::size_t>(4, p.logits.disagreements.size()); ++i) {
      const Disagreement& d = p.logits.disagreements[i];
      out += fmt::format("    {}, position {}: {} instead of {}, which leads by {:.3g}\n", d.sequence, d.position,
                         d.candidate_token, d.baseline_token, d.margin);
    }
  }
  return out;
}

std::string divergences(const BaselineResult& b) {
  std::string out;
  for (const ProcedureResult& p : b.procedures) {
    if (p.logits.first_divergence) {
      out += fmt::format("  {}: {} positions outside, the first at {}\n", p.name, p.logits.outside,
                         place(*p.logits.first_divergence));
    }
    if (!p.within && p.logits.worst) out += fmt::format("  {}: worst at {}\n", p.name, place(*p.logits.worst));
  }
  return out;
}

std::string state_tolerances(const Tolerance& t) {
  std::string out;
  for (const auto& [kind, share] : t.states) out += fmt::format("{}{:.2g} ({})", out.empty() ? "" : ", ", share, kind);
  return (out.empty() ? fmt::format("{:.2g}", t.other_states) : out) + " of a state's largest value";
}

// A line a layer: the largest difference of each of its states over all procedures, and what is allowed.
std::string states_by_layer(const BaselineResult& b) {
  std::map<std::int64_t, std::map<std::string, const StateDifference*>> layers;
  for (const ProcedureResult& p : b.procedures) {
    for (const StateDifference& s : p.states) {
      const StateDifference*& worst = layers[s.layer][s.kind];
      if (worst == nullptr || share(s) > share(*worst)) worst = &s;
    }
  }
  std::string out;
  for (const auto& [layer, states] : layers) {
    out += fmt::format("  {:<16}", out.empty() ? "states by layer" : "");
    out += fmt::format("{:>3}", layer);
    for (const auto& [kind, s] : states) {
      out += fmt::format("  {:>9} {}", kind,
                         s->note.empty()
                             ? fmt::format("{:.1e} of {:.1e}{}", s->max_abs, s->tolerance, s->within() ? "" : " <-")
                             : s->note);
    }
    out += "\n";
  }
  return out;
}

std::string baseline_text(const BaselineResult& b) {
  std::string out = fmt::format("against {}\n\n", b.baseline);
  out += fmt::format("  {:<16}{:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>13}  {}\n", "", "positions", "max |d|", "mean |d|",
                     "mean KL", "max KL", "same top", "worst state");
  for (const ProcedureResult& p : b.procedures) out += row_of(p);
  out += "\n";
  for (const ProcedureResult& p : b.procedures) out += fmt::format("  {:<16}{}\n", p.name, p.how);
  out += fmt::format("  {:<16}{:.3g} = {}\n", "tolerance", b.tolerance.logits, b.tolerance.formula);
  out += fmt::format("  {:<16}{}\n", "  of states", state_tolerances(b.tolerance));
  if (b.routing_may_flip) {
    out += fmt::format(
        "  {:<16}roundings as coarse as these may choose another expert: {:.0f} % of the positions may be outside, "
        "states are shown only\n",
        "experts", 100 * BaselineResult::kFlippedShare);
  }
  if (b.epsilon_effect) {
    out += fmt::format(
        "  {:<16}{:.3g} is what the operator's own q/k epsilon moves a logit by; no error of the package{}\n",
        "q/k epsilon", *b.epsilon_effect,
        b.allowed > b.tolerance.logits ? fmt::format("; allowed here: {:.3g}", b.allowed) : "");
  }
  out += states_by_layer(b);
  for (const std::string& notice : b.notices) out += fmt::format("  note: {}\n", notice);
  out += disagreements(b);
  out += divergences(b);
  out += b.reasons.empty() ? "\n  within tolerance\n\n" : "\n  OUTSIDE TOLERANCE\n";
  for (const std::string& reason : b.reasons) out += fmt::format("    {}\n", reason);
  if (!b.reasons.empty()) out += "\n";
  return out;
}

// JSON has no infinity.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(fmt::format("{}", value)); }

Json to_json(const LogitsPlace& p) {
  return Json::Object{{"sequence", p.sequence},
                      {"position", p.position},
                      {"token", p.token},
                      {"baseline", number(p.baseline)},
                      {"candidate", number(p.candidate)}};
}

Json to_json(const LogitsDifference& d) {
  Json::Array ties;
  for (const Disagreement& t : d.disagreements) {
    ties.push_back(Json::Object{{"sequence", t.sequence},
                                {"position", t.position},
                                {"baseline_token", t.baseline_token},
                                {"candidate_token", t.candidate_token},
                                {"margin", number(t.margin)}});
  }
  return Json::Object{{"positions", d.rows},
                      {"positions_with_token_only", d.tokens_only},
                      {"outside", d.outside},
                      {"not_finite", d.not_finite},
                      {"max_abs", number(d.max_abs)},
                      {"mean_abs", number(d.mean_abs)},
                      {"max_logit", number(d.max_logit)},
                      {"mean_kl", number(d.mean_kl)},
                      {"max_kl", number(d.max_kl)},
                      {"top1_agreement", number(d.agreement())},
                      {"top1_disagreed", d.disagreed},
                      {"largest_margin", number(d.largest_margin)},
                      {"disagreements", std::move(ties)},
                      {"worst", d.worst ? to_json(*d.worst) : Json()},
                      {"first_divergence", d.first_divergence ? to_json(*d.first_divergence) : Json()}};
}

Json to_json(const ProcedureResult& p) {
  Json::Array states;
  for (const StateDifference& s : p.states) {
    states.push_back(Json::Object{{"layer", s.layer},
                                  {"kind", s.kind},
                                  {"sequence", s.sequence},
                                  {"max_abs", number(s.max_abs)},
                                  {"scale", number(s.scale)},
                                  {"tolerance", number(s.tolerance)},
                                  {"note", s.note},
                                  {"within", s.within()}});
  }
  return Json::Object{{"name", p.name},
                      {"how", p.how},
                      {"sequences", p.sequences},
                      {"largest_piece", p.largest_piece},
                      {"within", p.within},
                      {"logits", to_json(p.logits)},
                      {"states", std::move(states)}};
}

Json to_json(const BaselineResult& b) {
  Json::Array all;
  for (const ProcedureResult& p : b.procedures) all.push_back(to_json(p));
  return Json::Object{{"baseline", b.baseline},
                      {"within", b.reasons.empty()},
                      {"tolerance", Json::Object{{"logits", number(b.tolerance.logits)},
                                                 {"states_relative", state_tolerances(b.tolerance)},
                                                 {"formula", b.tolerance.formula}}},
                      {"epsilon_effect", b.epsilon_effect ? number(*b.epsilon_effect) : Json()},
                      {"allowed", number(b.allowed)},
                      {"routing_may_flip", b.routing_may_flip},
                      {"procedures", std::move(all)},
                      {"reasons", Json::array(b.reasons)},
                      {"notices", Json::array(b.notices)}};
}

}  // namespace

std::string to_text(const VerifyReport& report) {
  std::string out = fmt::format("{}\n", report.package);
  for (const BaselineResult& b : report.baselines) out += baseline_text(b);
  out += report.within() ? "OK: the package computes what it is held against.\n"
                         : "NOT OK: the package is outside tolerance.\n";
  return out;
}

Json to_json(const VerifyReport& report) {
  Json::Array all;
  for (const BaselineResult& b : report.baselines) all.push_back(to_json(b));
  return Json::Object{{"package", report.package}, {"within", report.within()}, {"baselines", std::move(all)}};
}

}  // namespace sluice

#include "eval/difference.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace sluice {
namespace {

double log_sum_exp(std::span<const float> x) {
  double largest = -std::numeric_limits<double>::infinity();
  for (const float value : x) largest = std::max(largest, static_cast<double>(value));
  double sum = 0;
  for (const float value : x) sum += std::exp(static_cast<double>(value) - largest);
  return largest + std::log(sum);
}

bool all_finite(std::span<const float> x) {
  return std::ranges::all_of(x, [](float value) { return std::isfinite(value); });
}

double at(std::span<const float> row, std::int64_t token) {
  return static_cast<double>(row[static_cast<std::size_t>(token)]);
}

}  // namespace

double kl_divergence(std::span<const float> p, std::span<const float> q) {
  const double p_norm = log_sum_exp(p);
  const double q_norm = log_sum_exp(q);
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double log_p = static_cast<double>(p[i]) - p_norm;
    const double log_q = static_cast<double>(q[i]) - q_norm;
    sum += std::exp(log_p) * (log_p - log_q);
  }
  return sum;
}

void LogitsComparison::disagree(Disagreement found) {
  LogitsDifference& d = difference_;
  ++d.disagreed;
  d.largest_margin = std::max(d.largest_margin, found.margin);
  if (d.disagreements.size() < LogitsDifference::kListed) d.disagreements.push_back(std::move(found));
}

void LogitsComparison::add(std::string_view sequence, std::int64_t position, std::span<const float> baseline,
                           std::span<const float> candidate) {
  SLUICE_CHECK(baseline.size() == candidate.size() && !baseline.empty());
  LogitsDifference& d = difference_;
  const auto place = [&](std::size_t i) {
    return LogitsPlace{std::string(sequence), position, static_cast<std::int64_t>(i), static_cast<double>(baseline[i]),
                       static_cast<double>(candidate[i])};
  };
  double row_worst = -1;
  std::size_t row_at = 0;
  for (std::size_t i = 0; i < baseline.size(); ++i) {
    const double difference = std::abs(static_cast<double>(candidate[i]) - static_cast<double>(baseline[i]));
    d.max_logit = std::max(d.max_logit, std::abs(static_cast<double>(baseline[i])));
    if (!std::isfinite(difference)) {
      if (d.not_finite++ == 0) d.worst = place(i);
      row_worst = std::numeric_limits<double>::infinity();
      row_at = i;
      continue;
    }
    sum_abs_ += difference;
    ++values_;
    if (difference > row_worst) row_worst = difference, row_at = i;
    if (difference > d.max_abs || (difference == d.max_abs && !d.worst)) {
      d.max_abs = difference;
      if (d.not_finite == 0) d.worst = place(i);
    }
  }
  row_worst_.push_back(place(row_at));
  ++d.rows;
  if (all_finite(baseline) && all_finite(candidate)) {
    const double kl = std::max(0.0, kl_divergence(baseline, candidate));
    sum_kl_ += kl;
    d.max_kl = std::max(d.max_kl, kl);
  }
  const std::int64_t expected = argmax(baseline);
  const std::int64_t chosen = argmax(candidate);
  if (expected == chosen) {
    ++d.agreed;
  } else {
    const bool comparable = expected >= 0 && chosen >= 0;
    const double margin =
        comparable ? at(baseline, expected) - at(baseline, chosen) : std::numeric_limits<double>::infinity();
    disagree({std::string(sequence), position, expected, chosen, margin});
  }
}

void LogitsComparison::add_token(std::string_view sequence, std::int64_t position, std::int64_t token,
                                 std::span<const float> candidate) {
  ++difference_.tokens_only;
  const std::int64_t chosen = argmax(candidate);
  if (chosen == token) {
    ++difference_.agreed;
    return;
  }
  const bool comparable = chosen >= 0 && token >= 0 && token < static_cast<std::int64_t>(candidate.size());
  const double margin =
      comparable ? at(candidate, chosen) - at(candidate, token) : std::numeric_limits<double>::infinity();
  disagree({std::string(sequence), position, token, chosen, margin});
}

LogitsDifference LogitsComparison::result(double tolerance) const {
  LogitsDifference d = difference_;
  const auto outside = [&](const LogitsPlace& p) { return !(std::abs(p.candidate - p.baseline) <= tolerance); };
  d.outside = std::ranges::count_if(row_worst_, outside);
  if (d.outside > 0) d.first_divergence = *std::ranges::find_if(row_worst_, outside);
  if (values_ > 0) d.mean_abs = sum_abs_ / static_cast<double>(values_);
  if (d.rows > 0) d.mean_kl = sum_kl_ / static_cast<double>(d.rows);
  return d;
}

std::vector<StateDifference> compare_states(std::string_view sequence, std::span<const LayerStateValues> baseline,
                                            std::span<const LayerStateValues> candidate) {
  std::vector<StateDifference> out;
  for (const LayerStateValues& expected : baseline) {
    StateDifference d{expected.layer, expected.kind, std::string(sequence), 0, 0, 0, {}};
    const auto found = std::ranges::find_if(
        candidate, [&](const LayerStateValues& s) { return s.layer == expected.layer && s.kind == expected.kind; });
    if (found == candidate.end()) {
      d.note = "absent";
    } else if (found->shape != expected.shape) {
      d.note = fmt::format("shape {} instead of {}", to_string(found->shape), to_string(expected.shape));
    } else {
      for (std::size_t i = 0; i < expected.values.size(); ++i) {
        const double difference =
            std::abs(static_cast<double>(found->values[i]) - static_cast<double>(expected.values[i]));
        d.scale = std::max(d.scale, std::abs(static_cast<double>(expected.values[i])));
        d.max_abs = std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(d.max_abs, difference);
      }
    }
    out.push_back(std::move(d));
  }
  return out;
}

}  // namespace sluice

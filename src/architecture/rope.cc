#include "architecture/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace sluice {
namespace {

constexpr double kDefaultTheta = 10000.0;
constexpr double kDefaultPartial = 0.25;
constexpr std::string_view kTypes = "default, linear, yarn";

bool same(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return a.as_number("") == b.as_number("");
  if (!a.is_array() || !b.is_array()) return a == b;
  const auto &left = a.as_array(""), &right = b.as_array("");
  return std::equal(left.begin(), left.end(), right.begin(), right.end(), same);
}

// The three places rotary keys are found in.
class RopeKeys {
 public:
  explicit RopeKeys(ConfigKeys& text) : text_(text) {
    for (const std::string_view name : {"rope_parameters", "rope_scaling"}) {
      if (const Json* object = text.find(name)) places_.emplace_back(*object, text.path(name));
    }
  }

  struct Found {
    const Json* value = nullptr;
    std::string path;
    explicit operator bool() const { return value != nullptr; }
  };

  // The value of a key in the first place that has it. Contradictions are errors.
  Found find(std::string_view key) {
    Found found;
    const auto look = [&](ConfigKeys& place) {
      const Json* value = place.find(key);
      if (value == nullptr) return;
      if (!found) {
        found = {value, place.path(key)};
      } else if (!same(*found.value, *value)) {
        fail("{} is {}, but {} is {}; remove one of them", found.path, shown(*found.value), place.path(key),
             shown(*value));
      }
    };
    for (ConfigKeys& place : places_) look(place);
    look(text_);
    return found;
  }

  std::optional<double> number(std::string_view key) {
    const Found found = find(key);
    if (!found) return std::nullopt;
    const double value = found.value->as_number(found.path);
    if (!std::isfinite(value)) fail("{} is {}; expected a finite number", found.path, value);
    return value;
  }

  std::optional<double> positive(std::string_view key) {
    const auto value = number(key);
    if (value && !(*value > 0)) fail("{} is {}; expected a number above 0", find(key).path, *value);
    return value;
  }

  // Of two places that name a type, "default" gives way: rope_scaling is laid over rope_parameters.
  Found type() {
    Found found;
    for (ConfigKeys& place : places_) prefer(found, type_in(place, true));
    prefer(found, type_in(text_, false));
    return found;
  }

  void report_unknown(std::vector<std::string>& notices) const {
    for (const ConfigKeys& place : places_) {
      for (const auto& [key, value] : place.unknown()) {
        if (value->is_object())
          fail("{}: an object of its own is not supported there; give one set of rotary keys", place.path(key));
        notices.push_back(fmt::format("{} ({}) is not known for this kind of rotary embedding and is ignored",
                                      place.path(key), shown(*value)));
      }
    }
  }

 private:
  static std::string_view plain(const Found& found) {
    const std::string& name = found.value->as_string(found.path);
    return name == "mrope" ? "default" : std::string_view(name);  // an older spelling that meant the position ids alone
  }

  static Found type_in(ConfigKeys& place, bool old_spelling) {
    Found found;
    if (const Json* value = place.find("rope_type")) found = {value, place.path("rope_type")};
    if (const Json* value = old_spelling ? place.find("type") : nullptr) {
      const Found old{value, place.path("type")};
      if (!found) return old;
      if (plain(found) != plain(old))
        fail("{} is {}, but {} is {}; remove one of them", found.path, shown(*found.value), old.path, shown(*value));
    }
    return found;
  }

  static void prefer(Found& found, Found other) {
    if (!other) return;
    if (!found || plain(found) == "default") {
      found = std::move(other);
    } else if (plain(other) != "default" && plain(other) != plain(found)) {
      fail("{} is {}, but {} is {}; remove one of them", found.path, shown(*found.value), other.path,
           shown(*other.value));
    }
  }

  ConfigKeys& text_;
  std::vector<ConfigKeys> places_;
};

RopeType read_type(RopeKeys& keys) {
  const auto found = keys.type();
  if (!found) return RopeType::default_;
  const std::string& name = found.value->as_string(found.path);
  if (name == "default" || name == "mrope") return RopeType::default_;
  if (name == "linear") return RopeType::linear;
  if (name == "yarn") return RopeType::yarn;
  fail("{} \"{}\" is not supported; supported are {}", found.path, name, kTypes);
}

void read_sections(RopeKeys& keys, RopeConfig& rope) {
  if (const auto interleaved = keys.find("mrope_interleaved"))
    rope.mrope_interleaved = interleaved.value->as_bool(interleaved.path);
  const auto sections = keys.find("mrope_section");
  if (!sections) return;
  const auto& extents = sections.value->as_array(sections.path);
  if (extents.size() != 3) fail("{} has {} entries; expected 3 (time, height, width)", sections.path, extents.size());
  const auto half = static_cast<std::int64_t>(rope.inverse_frequency.size());
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    rope.mrope_section[i] = extents[i].as_int(sections.path);
    if (rope.mrope_section[i] < 0 || rope.mrope_section[i] > (std::int64_t{1} << 32)) {
      fail("{} is {}; expected three integers of at least 0", sections.path, shown(*sections.value));
    }
    sum += rope.mrope_section[i];
  }
  if (sum != half) {
    fail(
        "{} {} sums to {}, but half the rotary dimension is {} (head_dim * partial_rotary_factor / 2); one of them is "
        "wrong",
        sections.path, shown(*sections.value), sum, half);
  }
}

// theta^(-2i/d), d = int(head_dim * partial), i < ceil(d/2).
std::vector<double> plain_frequencies(double theta, std::int64_t d) {
  std::vector<double> inverse(static_cast<std::size_t>((d + 1) / 2));
  for (std::size_t i = 0; i < inverse.size(); ++i) {
    inverse[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(d));
  }
  return inverse;
}

// What YaRN multiplies cos and sin by, for a scale s and a factor a of its logarithm.
double yarn_magnitude(double scale, double a) { return scale <= 1 ? 1.0 : 0.1 * a * std::log(scale) + 1.0; }

double read_yarn_attention_factor(RopeKeys& keys, double factor) {
  const auto given = keys.positive("attention_factor");
  const double mscale = keys.number("mscale").value_or(0), all_dim = keys.number("mscale_all_dim").value_or(0);
  if (given) return *given;
  if (mscale != 0 && all_dim != 0) return yarn_magnitude(factor, mscale) / yarn_magnitude(factor, all_dim);
  return yarn_magnitude(factor, 1);
}

double read_rotations(RopeKeys& keys, std::string_view key, double fallback) {
  const auto value = keys.number(key);
  if (value && *value < 0) fail("{} is {}; expected a number of at least 0", keys.find(key).path, *value);
  return value && *value != 0 ? *value : fallback;
}

void apply_yarn(RopeKeys& keys, std::int64_t d, std::int64_t max_positions, RopeConfig& rope,
                std::vector<std::string>& notices) {
  if (d % 2 != 0) fail("rope_type yarn needs an even rotary dimension; int(head_dim * partial_rotary_factor) is {}", d);
  if (!(rope.theta > 1)) fail("rope_type yarn needs a rope_theta above 1; it is {}", rope.theta);
  auto original = keys.positive("original_max_position_embeddings");
  if (!original) {
    original = static_cast<double>(max_positions);
    notices.push_back(
        fmt::format("original_max_position_embeddings is missing for rope_type yarn; max_position_embeddings ({}) is "
                    "used, as transformers does",
                    max_positions));
  }
  rope.factor = keys.positive("factor").value_or(static_cast<double>(max_positions) / *original);
  const double dim = static_cast<double>(d);
  // The dimension that turns `rotations` times over the original context.
  const auto correction = [&](double rotations) {
    return dim * std::log(*original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  double low = correction(read_rotations(keys, "beta_fast", 32));
  double high = correction(read_rotations(keys, "beta_slow", 1));
  const auto truncate = keys.find("truncate");
  if (!truncate || truncate.value->as_bool(truncate.path)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < rope.inverse_frequency.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    const double inverse = rope.inverse_frequency[i];
    rope.inverse_frequency[i] = inverse / rope.factor * ramp + inverse * (1 - ramp);
  }
  rope.attention_factor = read_yarn_attention_factor(keys, rope.factor);
}

void apply_linear(RopeKeys& keys, RopeConfig& rope) {
  const auto factor = keys.positive("factor");
  if (!factor) fail("rope_type linear needs a factor; none is in rope_parameters, rope_scaling or beside them");
  rope.factor = *factor;
  for (double& inverse : rope.inverse_frequency) inverse /= rope.factor;
}

}  // namespace

RopeConfig read_rope(ConfigKeys& text, std::int64_t head_dim, std::int64_t max_positions,
                     std::vector<std::string>& notices) {
  RopeKeys keys(text);
  RopeConfig rope;
  rope.type = read_type(keys);
  const auto theta = keys.positive("rope_theta");
  rope.theta = theta.value_or(kDefaultTheta);
  if (!theta) {
    notices.push_back(fmt::format(
        "WARNING: {} has no rope_theta; {} is used, transformers' default. A released model always states it: "
        "is the config damaged?",
        text.where(), kDefaultTheta));
  }
  rope.partial_rotary_factor = keys.positive("partial_rotary_factor").value_or(kDefaultPartial);
  // Truncated towards zero like Python's int(), so that d agrees with transformers to the last bit of the product.
  const double product = static_cast<double>(head_dim) * rope.partial_rotary_factor;
  const std::int64_t d = product > static_cast<double>(head_dim) ? head_dim + 1 : static_cast<std::int64_t>(product);
  if (d < 1 || 2 * ((d + 1) / 2) > head_dim) {
    fail("{}: partial_rotary_factor {} of head_dim {} rotates {} dimensions; expected 2 to {}", text.where(),
         rope.partial_rotary_factor, head_dim, 2 * ((d + 1) / 2), head_dim);
  }
  rope.inverse_frequency = plain_frequencies(rope.theta, d);
  if (rope.type == RopeType::linear) apply_linear(keys, rope);
  if (rope.type == RopeType::yarn) apply_yarn(keys, d, max_positions, rope, notices);
  for (const double inverse : rope.inverse_frequency) {
    if (!std::isfinite(inverse)) fail("{}: the rotary keys give a frequency that is not finite", text.where());
  }
  read_sections(keys, rope);
  keys.report_unknown(notices);
  return rope;
}

}  // namespace sluice

#include "architecture/config_keys.h"

#include <cmath>

#include "base/error.h"

namespace sluice {

ConfigKeys::ConfigKeys(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
  object_.as_object(where_);
}

const Json* ConfigKeys::find(std::string_view key) {
  known_.emplace(key);
  const Json* value = object_.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::string ConfigKeys::path(std::string_view key) const { return fmt::format("{}: {}", where_, key); }

std::int64_t ConfigKeys::size(std::string_view key, std::int64_t limit) {
  const auto value = integer(key, 1, limit);
  if (!value) fail("{} is missing; Sluice guesses no sizes: add it", path(key));
  return *value;
}

std::optional<std::int64_t> ConfigKeys::integer(std::string_view key, std::int64_t least, std::int64_t most) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::int64_t number = value->as_int(path(key));
  if (number < least || number > most)
    fail("{} is {}; expected an integer from {} to {}", path(key), number, least, most);
  return number;
}

std::optional<double> ConfigKeys::number(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const double number = value->as_number(path(key));
  if (!std::isfinite(number)) fail("{} is {}; expected a finite number", path(key), number);
  return number;
}

std::optional<bool> ConfigKeys::flag(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return value->as_bool(path(key));
}

std::optional<std::string> ConfigKeys::text(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return value->as_string(path(key));
}

void ConfigKeys::know(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) known_.emplace(key);
}

std::vector<std::pair<std::string, const Json*>> ConfigKeys::unknown() const {
  std::vector<std::pair<std::string, const Json*>> out;
  for (const auto& [key, value] : object_.as_object(where_)) {
    if (!value.is_null() && known_.find(key) == known_.end()) out.emplace_back(key, &value);
  }
  return out;
}

std::string shown(const Json& value) {
  std::string text = value.dump(-1);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace sluice

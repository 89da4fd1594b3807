// Typed access to the keys of one JSON object of a config, which remembers what was asked for: the rest is unknown.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace sluice {

// null counts as absent everywhere. Errors name the file, the path to the key, what was expected and what was found.
class ConfigKeys {
 public:
  // `object` must outlive this; `where` is the path to it: "config.json: text_config".
  ConfigKeys(const Json& object, std::string where);

  const Json* find(std::string_view key);
  // An extent the file must state: an integer in [1, limit].
  std::int64_t size(std::string_view key, std::int64_t limit);
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t least, std::int64_t most);
  std::optional<double> number(std::string_view key);  // finite
  std::optional<bool> flag(std::string_view key);
  std::optional<std::string> text(std::string_view key);

  // "config.json: text_config: hidden_size"
  std::string path(std::string_view key) const;
  const std::string& where() const { return where_; }

  // Marks keys as known that change nothing here.
  void know(std::initializer_list<std::string_view> keys);
  // Keys with a value that nobody asked for, in file order.
  std::vector<std::pair<std::string, const Json*>> unknown() const;

 private:
  const Json& object_;
  std::string where_;
  std::set<std::string, std::less<>> known_;
};

// A value of an unknown or refused key for a message: compact JSON, shortened.
std::string shown(const Json& value);

}  // namespace sluice

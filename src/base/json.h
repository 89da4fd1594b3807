// JSON as Sluice reads and writes it: strict, order kept, duplicate keys refused, every error says where.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace sluice {

// One JSON value. Objects keep the order of their keys.
class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;

  Json() = default;  // null
  Json(std::nullptr_t) {}
  Json(bool value) : value_(value) {}
  Json(int value) : value_(static_cast<std::int64_t>(value)) {}
  Json(std::int64_t value) : value_(value) {}
  // Kept signed whenever it fits, so that equal integers are equal values however they were made.
  Json(std::uint64_t value) {
    if (value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      value_ = static_cast<std::int64_t>(value);
    } else {
      value_ = value;
    }
  }
  Json(double value) : value_(value) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}
  template <typename T>
  static Json array(const T& values) {
    Array out;
    for (const auto& v : values) out.emplace_back(v);
    return Json(std::move(out));
  }

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  // An integer literal (1e3 and 1.0 are not), whatever its sign.
  bool is_integer() const {
    return std::holds_alternative<std::int64_t>(value_) || std::holds_alternative<std::uint64_t>(value_);
  }
  bool is_unsigned() const { return std::holds_alternative<std::uint64_t>(value_); }  // an integer beyond int64
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  std::string_view type_name() const;  // "null", "boolean", "integer", "number", "string", "array", "object"

  // Typed access; `what` names the value in the Error that a wrong type throws ("config.json: hidden_size").
  bool as_bool(std::string_view what) const;
  std::int64_t as_int(std::string_view what) const;    // also an error when it does not fit 64 bits, signed
  std::uint64_t as_uint(std::string_view what) const;  // also an error when negative
  double as_number(std::string_view what) const;       // integers too
  const std::string& as_string(std::string_view what) const;
  const Array& as_array(std::string_view what) const;
  const Object& as_object(std::string_view what) const;

  // The member of that name, or null when this is no object or has none.
  const Json* find(std::string_view key) const;
  // Like find, but an Error naming `what` and the key when absent.
  const Json& at(std::string_view key, std::string_view what) const;
  // Appends or replaces a member; turns null into an object.
  Json& set(std::string_view key, Json value);

  // Compact when indent < 0; doubles print shortest round-trip and always as numbers (Inf and NaN are a bug).
  std::string dump(int indent = 2) const;

  bool operator==(const Json&) const = default;

 private:
  std::string found() const;

  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Array, Object> value_;
};

// Parses one JSON text. `source` names it in errors. Refuses: anything but one value, invalid UTF-8, duplicate keys,
// nesting deeper than 128, numbers beyond double. A UTF-8 byte order mark is skipped.
Json parse_json(std::string_view text, std::string_view source);

// Reads and parses a file of at most `max_bytes` bytes.
Json read_json(const std::filesystem::path& path, std::uint64_t max_bytes = 256u << 20);

}  // namespace sluice

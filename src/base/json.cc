#include "base/json.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace sluice {
namespace {

constexpr std::size_t kMaxDepth = 128;

// Builds a Json from nlohmann's events: its DOM would lose duplicate keys and key order.
class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Builder(std::string_view source) : source_(source) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(Json(static_cast<std::int64_t>(value))); }
  bool number_unsigned(number_unsigned_t value) override { return add(Json(static_cast<std::uint64_t>(value))); }
  bool number_float(number_float_t value, const string_t&) override { return add(Json(static_cast<double>(value))); }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json(Json::Object{})); }
  bool end_object() override {
    refuse_duplicates(open_.back().value.as_object(""));
    return close();
  }
  bool start_array(std::size_t) override { return open(Json(Json::Array{})); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    open_.back().key = std::move(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override {
    std::string_view reason = error.what();
    if (const auto end_of_id = reason.find("] "); end_of_id != std::string_view::npos)
      reason.remove_prefix(end_of_id + 2);
    fail("{}: not valid JSON at byte {}: {}", source_, position, one_line(reason));
  }

 private:
  struct Open {
    Json value;
    std::string key;
  };

  static std::string one_line(std::string_view text) {
    std::string out;
    for (const char c : text.substr(0, 200))
      out += static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f ? '?' : c;
    return out;
  }

  bool open(Json value) {
    if (open_.size() >= kMaxDepth)
      fail("{}: nested deeper than {} levels; not a file of this kind", source_, kMaxDepth);
    open_.push_back({std::move(value), {}});
    return true;
  }

  // At the end of an object rather than at each key: the headers of large checkpoints are hundreds of thousands of
  // small objects.
  void refuse_duplicates(const Json::Object& members) const {
    std::vector<std::string_view> keys;
    keys.reserve(members.size());
    for (const auto& [key, value] : members) keys.push_back(key);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) fail("{}: the key \"{}\" occurs twice in one object; remove one", source_, *twice);
  }

  bool close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }

  bool add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Open& parent = open_.back();
    if (parent.value.is_object()) {
      const_cast<Json::Object&>(parent.value.as_object("")).emplace_back(std::move(parent.key), std::move(value));
    } else {
      const_cast<Json::Array&>(parent.value.as_array("")).push_back(std::move(value));
    }
    return true;
  }

  std::string_view source_;
  Json root_;
  std::vector<Open> open_;
};

nlohmann::ordered_json to_dom(const Json& value) {
  if (value.is_null()) return nullptr;
  if (value.is_bool()) return value.as_bool("");
  if (value.is_unsigned()) return value.as_uint("");
  if (value.is_integer()) return value.as_int("");
  if (value.is_number()) return value.as_number("");
  if (value.is_string()) return value.as_string("");
  if (value.is_array()) {
    auto out = nlohmann::ordered_json::array();
    for (const Json& v : value.as_array("")) out.push_back(to_dom(v));
    return out;
  }
  auto out = nlohmann::ordered_json::object();
  for (const auto& [key, v] : value.as_object("")) out.push_back({key, to_dom(v)});
  return out;
}

}  // namespace

std::string_view Json::type_name() const {
  if (is_null()) return "null";
  if (is_bool()) return "boolean";
  if (is_integer()) return "integer";
  if (is_number()) return "number";
  if (is_string()) return "string";
  return is_array() ? "array" : "object";
}

// What a message says was found: "null", or a type with the beginning of the value.
std::string Json::found() const {
  return is_null() ? "null" : fmt::format("{} {}", type_name(), dump(-1).substr(0, 80));
}

bool Json::as_bool(std::string_view what) const {
  if (const bool* v = std::get_if<bool>(&value_)) return *v;
  fail("{}: expected true or false, found {}", what, found());
}

std::int64_t Json::as_int(std::string_view what) const {
  if (const auto* v = std::get_if<std::int64_t>(&value_)) return *v;
  fail("{}: expected an integer of 64 bits, found {}", what, found());
}

std::uint64_t Json::as_uint(std::string_view what) const {
  if (const auto* v = std::get_if<std::uint64_t>(&value_)) return *v;
  if (const auto* v = std::get_if<std::int64_t>(&value_); v && *v >= 0) return static_cast<std::uint64_t>(*v);
  fail("{}: expected an integer of at least 0, found {}", what, found());
}

double Json::as_number(std::string_view what) const {
  if (const auto* v = std::get_if<double>(&value_)) return *v;
  if (const auto* v = std::get_if<std::int64_t>(&value_)) return static_cast<double>(*v);
  if (const auto* v = std::get_if<std::uint64_t>(&value_)) return static_cast<double>(*v);
  fail("{}: expected a number, found {}", what, found());
}

const std::string& Json::as_string(std::string_view what) const {
  if (const auto* v = std::get_if<std::string>(&value_)) return *v;
  fail("{}: expected a string, found {}", what, found());
}

const Json::Array& Json::as_array(std::string_view what) const {
  if (const auto* v = std::get_if<Array>(&value_)) return *v;
  fail("{}: expected an array, found {}", what, found());
}

const Json::Object& Json::as_object(std::string_view what) const {
  if (const auto* v = std::get_if<Object>(&value_)) return *v;
  fail("{}: expected an object, found {}", what, found());
}

const Json* Json::find(std::string_view key) const {
  const auto* object = std::get_if<Object>(&value_);
  if (object == nullptr) return nullptr;
  for (const Member& member : *object) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

const Json& Json::at(std::string_view key, std::string_view what) const {
  const Json* value = find(key);
  if (value == nullptr) fail("{}: the key \"{}\" is missing", what, key);
  return *value;
}

Json& Json::set(std::string_view key, Json value) {
  if (is_null()) value_ = Object{};
  auto& object = std::get<Object>(value_);
  for (Member& member : object) {
    if (member.first == key) {
      member.second = std::move(value);
      return *this;
    }
  }
  object.emplace_back(std::string(key), std::move(value));
  return *this;
}

std::string Json::dump(int indent) const {
  return to_dom(*this).dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Json parse_json(std::string_view text, std::string_view source) {
  Builder builder(source);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) fail("{}: not valid JSON", source);
  return builder.take();
}

Json read_json(const std::filesystem::path& path, std::uint64_t max_bytes) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    fail("{}: expected a file, found {}", path.string(),
         std::filesystem::is_directory(status) ? "a folder" : "something else");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("{}: cannot be opened; is the path right and readable?", path.string());
  std::string text;
  std::vector<char> piece(1u << 16);
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0) {
    text.append(piece.data(), static_cast<std::size_t>(file.gcount()));
    if (text.size() > max_bytes)
      fail("{}: larger than the {} bytes a file of this kind may have", path.string(), max_bytes);
  }
  if (file.bad()) fail("{}: cannot be read", path.string());
  return parse_json(text, path.string());
}

}  // namespace sluice

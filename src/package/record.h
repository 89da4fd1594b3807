// Reading and writing plain structs as JSON objects from one list of their fields: `template <class Io> void
// fields(Io&, S&)`.
#pragma once

#include <fmt/format.h>
#include <concepts>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/json.h"

namespace sluice::record {

// An enumeration's two-way spelling; specialise for each enumeration a record holds.
template <typename E>
struct Names;  // static std::string_view name(E); static std::optional<E> from(std::string_view);

template <>
struct Names<DType> {
  static std::string_view name(DType d) { return dtype_name(d); }
  static std::optional<DType> from(std::string_view text) { return dtype_from_name(text); }
};

class Writer;
class Reader;

template <typename T>
Json write(T& value);
template <typename T>
void read(const Json& json, const std::string& what, T& value);

// Collects the fields of one struct into an object. Absent optionals are left out.
class Writer {
 public:
  template <typename T>
  void operator()(std::string_view key, T& value) {
    json.set(key, write(value));
  }
  template <typename T>
  void operator()(std::string_view key, std::optional<T>& value) {
    if (value) json.set(key, write(*value));
  }
  Json json{Json::Object{}};
};

// Fills the fields of one struct from an object; `what` names it in errors.
class Reader {
 public:
  Reader(const Json& object, std::string name) : json(object), what(std::move(name)) { json.as_object(what); }
  template <typename T>
  void operator()(std::string_view key, T& value) {
    read(json.at(key, what), fmt::format("{}: {}", what, key), value);
  }
  template <typename T>
  void operator()(std::string_view key, std::optional<T>& value) {
    if (const Json* found = json.find(key)) read(*found, fmt::format("{}: {}", what, key), value.emplace());
  }
  const Json& json;
  std::string what;
};

template <typename T>
concept HasFields = requires(Writer& io, T& value) { fields(io, value); };

template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};

template <typename T>
Json write(T& value) {
  if constexpr (std::same_as<T, Json>) {
    return value;
  } else if constexpr (std::is_enum_v<T>) {
    return Json(Names<T>::name(value));
  } else if constexpr (IsVector<T>::value) {
    Json::Array out;
    for (auto& element : value) out.push_back(write(element));
    return Json(std::move(out));
  } else if constexpr (HasFields<T>) {
    Writer writer;
    fields(writer, value);
    return std::move(writer.json);
  } else {
    return Json(value);
  }
}

template <typename T>
void read(const Json& json, const std::string& what, T& value) {
  if constexpr (std::same_as<T, Json>) {
    value = json;
  } else if constexpr (std::is_enum_v<T>) {
    const auto found = Names<T>::from(json.as_string(what));
    if (!found) fail("{}: \"{}\" is not a value this version knows", what, json.as_string(what));
    value = *found;
  } else if constexpr (IsVector<T>::value) {
    const Json::Array& array = json.as_array(what);
    value.clear();
    value.reserve(array.size());
    for (std::size_t i = 0; i < array.size(); ++i) read(array[i], fmt::format("{}[{}]", what, i), value.emplace_back());
  } else if constexpr (std::same_as<T, bool>) {
    value = json.as_bool(what);
  } else if constexpr (std::same_as<T, std::int64_t>) {
    value = json.as_int(what);
  } else if constexpr (std::same_as<T, std::uint64_t>) {
    value = json.as_uint(what);
  } else if constexpr (std::same_as<T, double>) {
    value = json.as_number(what);
  } else if constexpr (std::same_as<T, std::string>) {
    value = json.as_string(what);
  } else {
    Reader reader(json, what);
    fields(reader, value);
  }
}

}  // namespace sluice::record

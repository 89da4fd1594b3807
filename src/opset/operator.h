// Each operator's contract once, as data: domain, name, attributes, inputs, outputs, types, and one shape function over
// numbers and symbols. graph/ checks every node it emits against it; ops/ reads it when it serves the operator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "base/extent.h"

namespace sluice {

inline constexpr std::string_view kOnnxDomain = "";
inline constexpr std::string_view kMicrosoftDomain = "com.microsoft";
inline constexpr std::string_view kSluiceDomain = "sluice";

// A set of element types.
class TypeSet {
 public:
  constexpr TypeSet() = default;
  constexpr TypeSet(std::initializer_list<DType> types) {
    for (const DType t : types) bits_ |= std::uint32_t{1} << static_cast<unsigned>(t);
  }
  constexpr bool contains(DType t) const { return (bits_ >> static_cast<unsigned>(t) & 1u) != 0; }
  constexpr bool operator==(const TypeSet&) const = default;

 private:
  std::uint32_t bits_ = 0;
};

// A type variable of an operator: the inputs and outputs that name it share one element type out of `allowed`.
struct TypeVariable {
  std::string_view name;  // "T"
  TypeSet allowed;
};

enum class Presence { required, optional, variadic };

struct PortSpec {
  std::string_view name;
  std::string_view type;  // name of a type variable
  Presence presence = Presence::required;
  std::size_t rank = 0;  // of an output, where the operator alone fixes it
};

enum class AttributeKind { integer, number, text, integers };

// The default is in the member of its kind; an attribute without default that is not required may be absent.
struct AttributeSpec {
  std::string_view name;
  AttributeKind kind = AttributeKind::integer;
  enum class Default { required, none, value } has_default = Default::value;
  std::int64_t integer = 0;
  float number = 0;
  std::string_view text = {};
};

constexpr AttributeSpec int_attribute(std::string_view name, std::int64_t value) {
  return {.name = name, .kind = AttributeKind::integer, .integer = value};
}
constexpr AttributeSpec float_attribute(std::string_view name, float value) {
  return {.name = name, .kind = AttributeKind::number, .number = value};
}
constexpr AttributeSpec text_attribute(std::string_view name, std::string_view value) {
  return {.name = name, .kind = AttributeKind::text, .text = value};
}
constexpr AttributeSpec required_attribute(std::string_view name, AttributeKind kind) {
  return {.name = name, .kind = kind, .has_default = AttributeSpec::Default::required};
}
constexpr AttributeSpec optional_attribute(std::string_view name, AttributeKind kind) {
  return {.name = name, .kind = kind, .has_default = AttributeSpec::Default::none};
}

class ShapeContext;

struct OperatorSpec {
  std::string_view domain;
  std::string_view name;
  std::int64_t since_version = 1;
  std::span<const AttributeSpec> attributes = {};
  std::span<const TypeVariable> types = {};
  std::span<const PortSpec> inputs = {};
  std::span<const PortSpec> outputs = {};
  // Sets the shape of every listed output from what the context tells. Throws Error for shapes that do not fit: rank,
  // extents that are known on both sides and differ. Null: outputs have the shape of input 0.
  void (*infer)(ShapeContext&) = nullptr;

  const AttributeSpec* attribute(std::string_view attribute_name) const;
  TypeSet allowed(std::string_view type_variable) const;
};

// All operators our graphs use and our library serves.
std::span<const OperatorSpec* const> all_operators();
// Null when there is none.
const OperatorSpec* find_operator(std::string_view domain, std::string_view name);

}  // namespace sluice

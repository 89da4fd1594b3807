#include "ops/attributes.h"

#include <cmath>
#include <limits>

#include "base/error.h"

namespace sluice::ops {
namespace {

[[noreturn]] void refuse_missing(const AttributeSpec& attribute) { fail("attribute {} is missing", attribute.name); }

bool has_default(const AttributeSpec& attribute) { return attribute.has_default == AttributeSpec::Default::value; }

}  // namespace

const AttributeSpec& Attributes::specification(std::string_view name, AttributeKind kind) const {
  const AttributeSpec* attribute = spec_.attribute(name);
  SLUICE_CHECK(attribute != nullptr && attribute->kind == kind);
  return *attribute;
}

std::int64_t Attributes::integer(std::string_view name, std::optional<std::int64_t> otherwise) const {
  const AttributeSpec& attribute = specification(name, AttributeKind::integer);
  if (const auto value = find_integer(attribute.name.data())) return *value;
  if (has_default(attribute)) return attribute.integer;
  if (!otherwise) refuse_missing(attribute);
  return *otherwise;
}

float Attributes::number(std::string_view name, std::optional<float> otherwise) const {
  const AttributeSpec& attribute = specification(name, AttributeKind::number);
  if (const auto value = find_number(attribute.name.data())) {
    if (!std::isfinite(*value)) fail("attribute {}: expected a finite number, found {}", name, *value);
    return *value;
  }
  if (has_default(attribute)) return attribute.number;
  if (!otherwise) refuse_missing(attribute);
  return *otherwise;
}

std::string Attributes::text(std::string_view name) const {
  const AttributeSpec& attribute = specification(name, AttributeKind::text);
  if (auto value = find_text(attribute.name.data())) return std::move(*value);
  if (!has_default(attribute)) refuse_missing(attribute);
  return std::string(attribute.text);
}

std::vector<std::int64_t> Attributes::integers(std::string_view name) const {
  const AttributeSpec& attribute = specification(name, AttributeKind::integers);
  if (auto value = find_integers(attribute.name.data())) return std::move(*value);
  refuse_missing(attribute);
}

std::int64_t Attributes::integer_in(std::string_view name, std::int64_t low, std::int64_t high) const {
  const std::int64_t value = integer(name);
  if (value >= low && value <= high) return value;
  fail("attribute {}: expected {}..{}, found {}", name, low, high, value);
}

std::int64_t Attributes::count(std::string_view name) const {
  return integer_in(name, 1, std::numeric_limits<std::int32_t>::max());
}

void refuse_text(std::string_view attribute, std::string_view expected, std::string_view found) {
  fail("attribute {}: expected {}, found '{}'", attribute, expected, found);
}

}  // namespace sluice::ops

// A node's attributes, read with the contract's own defaults: a custom operator has no schema that would fill them in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "opset/operator.h"

namespace sluice::ops {

// Where attributes come from: an ONNX Runtime node, or a test.
class Attributes {
 public:
  explicit Attributes(const OperatorSpec& spec) : spec_(spec) {}
  virtual ~Attributes() = default;

  // The node's value, else the contract's default, else `otherwise`. Throws Error when there is none of them, or when
  // the node's has another type. Asking for a name or kind the contract does not have is a bug.
  std::int64_t integer(std::string_view name, std::optional<std::int64_t> otherwise = std::nullopt) const;
  float number(std::string_view name, std::optional<float> otherwise = std::nullopt) const;  // must be finite
  std::string text(std::string_view name) const;
  std::vector<std::int64_t> integers(std::string_view name) const;

  // An integer other than 0.
  bool flag(std::string_view name) const { return integer(name, 0) != 0; }
  // An integer in [low, high].
  std::int64_t integer_in(std::string_view name, std::int64_t low, std::int64_t high) const;
  // A head or channel count: 1..INT32_MAX.
  std::int64_t count(std::string_view name) const;

  const OperatorSpec& spec() const noexcept { return spec_; }

 protected:
  // Empty when the node has no such attribute; Error when it has one of another type.
  virtual std::optional<std::int64_t> find_integer(const char* name) const = 0;
  virtual std::optional<float> find_number(const char* name) const = 0;
  virtual std::optional<std::string> find_text(const char* name) const = 0;
  virtual std::optional<std::vector<std::int64_t>> find_integers(const char* name) const = 0;

 private:
  const AttributeSpec& specification(std::string_view name, AttributeKind kind) const;

  const OperatorSpec& spec_;
};

// Throws Error: "attribute update_rule: expected linear, gated, delta or gated_delta, found 'x'".
[[noreturn]] void refuse_text(std::string_view attribute, std::string_view expected, std::string_view found);

}  // namespace sluice::ops

// What a shape function sees of a node, and small arithmetic on extents.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/extent.h"
#include "opset/operator.h"

namespace sluice {

// One node, as much of it as is known: shapes, and the contents of small integer inputs (shapes, axes, sizes).
class ShapeContext {
 public:
  virtual ~ShapeContext() = default;

  virtual std::size_t input_count() const = 0;   // listed inputs, absent ones included
  virtual std::size_t output_count() const = 0;  // likewise
  virtual bool has_input(std::size_t index) const = 0;
  virtual bool has_output(std::size_t index) const = 0;
  virtual const Extents& input_shape(std::size_t index) const = 0;
  // The elements of an integer input of rank 0 or 1, when known before run time.
  virtual std::optional<Extents> input_contents(std::size_t index) const = 0;
  // The node's attribute, or the specification's default. A missing one without default is an Error.
  virtual std::int64_t integer(std::string_view attribute) const = 0;
  virtual std::string text(std::string_view attribute) const = 0;
  virtual std::vector<std::int64_t> integers(std::string_view attribute) const = 0;
  virtual bool has_attribute(std::string_view attribute) const = 0;

  virtual void set_output_shape(std::size_t index, Extents shape) = 0;
  // For outputs whose elements follow from shapes (Shape, Concat of shapes).
  virtual void set_output_contents(std::size_t index, Extents contents) = 0;
};

// "3", "batch_size", "[batch_size, 128]".
std::string to_string(const Extent& extent);
std::string to_string(const Extents& shape);

// Products and quotients of extents. A symbol may be a product itself ("batch_size*sequence_length"), factors sorted.
Extent multiply(const Extent& a, const Extent& b);
Extent product(const Extents& shape);
// a / b where it comes out even, symbol by symbol; empty where it does not.
std::optional<Extent> divide(const Extent& a, const Extent& b);
// The sum, where both are numbers; else the symbol "a + b".
Extent add(const Extent& a, const Extent& b);

// True unless both are numbers and differ: symbols may turn out to be anything.
bool may_equal(const Extent& a, const Extent& b);

// Checks that input `index` has `rank` axes and returns its shape.
const Extents& require_rank(const ShapeContext& context, std::size_t index, std::size_t rank);
// Checks an input's shape against the expected one (may_equal, axis by axis); absent inputs pass.
void require_shape(const ShapeContext& context, std::size_t index, const Extents& expected);

}  // namespace sluice

#include "opset/shape_context.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace sluice {
namespace {

// A product of a number and symbols, each symbol as often as it is a factor.
struct Factors {
  std::int64_t number = 1;
  std::vector<std::string> symbols;  // sorted
};

std::int64_t multiply_numbers(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) fail("shape: the product of extents {} and {} passes 63 bits", a, b);
  return product;
}

std::optional<std::int64_t> parse_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Factors factors(const Extent& e) {
  if (e.value >= 0) return {e.value, {}};
  Factors out;
  std::string_view rest = e.symbol;
  while (true) {
    const std::size_t star = rest.find('*');
    const std::string_view factor = rest.substr(0, star);
    if (const auto number = parse_number(factor)) {
      out.number = multiply_numbers(out.number, *number);
    } else {
      out.symbols.emplace_back(factor);
    }
    if (star == std::string_view::npos) break;
    rest.remove_prefix(star + 1);
  }
  std::ranges::sort(out.symbols);
  return out;
}

Extent to_extent(const Factors& f) {
  if (f.symbols.empty() || f.number == 0) return extent(f.number);
  const std::string symbols = fmt::format("{}", fmt::join(f.symbols, "*"));
  return extent(f.number == 1 ? symbols : fmt::format("{}*{}", f.number, symbols));
}

}  // namespace

std::string to_string(const Extent& e) { return e.value >= 0 ? fmt::format("{}", e.value) : e.symbol; }

std::string to_string(const Extents& shape) {
  std::vector<std::string> parts;
  for (const Extent& e : shape) parts.push_back(to_string(e));
  return fmt::format("[{}]", fmt::join(parts, ", "));
}

Extent multiply(const Extent& a, const Extent& b) {
  Factors left = factors(a);
  const Factors right = factors(b);
  left.number = multiply_numbers(left.number, right.number);
  left.symbols.insert(left.symbols.end(), right.symbols.begin(), right.symbols.end());
  std::ranges::sort(left.symbols);
  return to_extent(left);
}

Extent product(const Extents& shape) {
  Extent out = extent(1);
  for (const Extent& e : shape) out = multiply(out, e);
  return out;
}

std::optional<Extent> divide(const Extent& a, const Extent& b) {
  Factors left = factors(a);
  const Factors right = factors(b);
  if (right.number == 0 || left.number % right.number != 0) return std::nullopt;
  left.number /= right.number;
  for (const std::string& symbol : right.symbols) {
    const auto found = std::ranges::find(left.symbols, symbol);
    if (found == left.symbols.end()) return std::nullopt;
    left.symbols.erase(found);
  }
  return to_extent(left);
}

Extent add(const Extent& a, const Extent& b) {
  if (a.value < 0 || b.value < 0) return extent(to_string(a) + " + " + to_string(b));
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a.value, b.value, &sum)) {
    fail("shape: the sum of extents {} and {} passes 63 bits", a.value, b.value);
  }
  return extent(sum);
}

bool may_equal(const Extent& a, const Extent& b) { return a.value < 0 || b.value < 0 || a.value == b.value; }

const Extents& require_rank(const ShapeContext& context, std::size_t index, std::size_t rank) {
  const Extents& shape = context.input_shape(index);
  if (shape.size() != rank) {
    fail("input {} has shape {}: expected {} axes, found {}", index, to_string(shape), rank, shape.size());
  }
  return shape;
}

void require_shape(const ShapeContext& context, std::size_t index, const Extents& expected) {
  if (!context.has_input(index)) return;
  const Extents& shape = context.input_shape(index);
  if (!std::ranges::equal(shape, expected, may_equal)) {
    fail("input {} has shape {}, expected {}", index, to_string(shape), to_string(expected));
  }
}

}  // namespace sluice

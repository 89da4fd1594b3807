#include "ops/argument.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/shape.h"

namespace sluice::ops {

Dims::Dims(std::span<const std::int64_t> extents) : rank_(extents.size()) {
  if (rank_ > kMaxRank) fail("tensor rank: expected at most {}, found {}", kMaxRank, rank_);
  std::copy(extents.begin(), extents.end(), extents_.begin());
}

std::int64_t Dims::elements() const {
  const auto count = element_count(span());
  if (!count || *count > static_cast<std::uint64_t>(kMaxElements)) {
    fail("shape {}: expected at most {} elements", to_string(span()), kMaxElements);
  }
  return static_cast<std::int64_t>(*count);
}

bool Dims::operator==(const Dims& other) const noexcept { return std::ranges::equal(span(), other.span()); }

std::string label(const Argument& argument) { return fmt::format("input {} ({})", argument.index, argument.name); }

void expect_present(const Argument& argument, std::string_view reason) {
  if (!argument.present) fail("{} is missing: {}", label(argument), reason);
}

void expect_absent(const Argument& argument, std::string_view reason) {
  if (argument.present) fail("{} must be left out: {}", label(argument), reason);
}

void expect_dtype(const Argument& argument, std::initializer_list<DType> allowed) {
  if (std::ranges::find(allowed, argument.dtype) != allowed.end()) return;
  std::vector<std::string_view> names;
  for (const DType dtype : allowed) names.push_back(dtype_name(dtype));
  fail("{}: expected {}, found {}", label(argument), fmt::join(names, " or "), dtype_name(argument.dtype));
}

void expect_float(const Argument& argument) { expect_dtype(argument, {DType::f32, DType::f16, DType::bf16}); }

void expect_same_dtype(const Argument& argument, const Argument& other) {
  if (argument.dtype == other.dtype) return;
  fail("{}: expected {} as {}, found {}", label(argument), dtype_name(other.dtype), label(other),
       dtype_name(argument.dtype));
}

bool is_aligned(const void* data, DType dtype) noexcept {
  return reinterpret_cast<std::uintptr_t>(data) % dtype_bytes(dtype) == 0;
}

void expect_aligned(const Argument& argument) {
  if (is_aligned(argument.data, argument.dtype)) return;
  fail("{}: expected memory at a multiple of {} bytes", label(argument), dtype_bytes(argument.dtype));
}

void expect_rank(const Argument& argument, std::size_t rank, std::string_view layout) {
  if (argument.shape.rank() == rank) return;
  fail("{}: expected rank {} {}, found {}", label(argument), rank, layout, to_string(argument.shape.span()));
}

void expect_shape(const Argument& argument, const Dims& expected, std::string_view layout) {
  if (argument.shape == expected) return;
  fail("{}: expected {} = {}, found {}", label(argument), layout, to_string(expected.span()),
       to_string(argument.shape.span()));
}

void expect_positive(const Argument& argument, std::size_t axis, std::string_view axis_name) {
  const std::int64_t extent = argument.shape[axis];
  if (extent >= 1 && extent <= std::numeric_limits<std::int32_t>::max()) return;
  fail("{}: {} must be at least 1 and fit 32 bits, found {} in {}", label(argument), axis_name, extent,
       to_string(argument.shape.span()));
}

Indices::Indices(const Argument& argument) {
  if (!argument.present) return;
  expect_dtype(argument, {DType::i32});
  size_ = argument.shape.elements();
  if (is_aligned(argument.data, DType::i32)) {
    in_place_ = static_cast<const std::int32_t*>(argument.data);
  } else {
    copy_.resize(static_cast<std::size_t>(size_));
    std::memcpy(copy_.data(), argument.data, copy_.size() * sizeof(std::int32_t));
  }
}

std::int64_t expect_offsets(const Argument& argument, const Indices& offsets, std::int64_t tokens) {
  expect_rank(argument, 1, "[B + 1]");
  const CuSeqlensCheck found = validate_cu_seqlens(offsets.span(), tokens);
  if (!found.ok()) refuse_offsets(argument, found, tokens);
  return offsets.size() - 1;
}

void refuse_offsets(const Argument& argument, const CuSeqlensCheck& wrong, std::int64_t tokens) {
  switch (wrong.error) {
    case CuSeqlensError::empty:
      fail("{}: expected [B + 1] offsets, found none", label(argument));
    case CuSeqlensError::first_not_zero:
      fail("{}: expected 0 as the first offset, found {}", label(argument), wrong.value);
    case CuSeqlensError::decreasing:
      fail("{}: expected offsets that never decrease, found {} at index {}", label(argument), wrong.value, wrong.index);
    case CuSeqlensError::last_not_total:
      fail("{}: expected the number of tokens, {}, as the last offset, found {}", label(argument), tokens, wrong.value);
    case CuSeqlensError::none:
      break;
  }
  fail("{}: malformed offsets", label(argument));
}

}  // namespace sluice::ops

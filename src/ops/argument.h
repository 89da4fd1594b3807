// What a node was given, free of ONNX Runtime: validators read these and can be tested and fuzzed alone.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "kernels/cpu/cu_seqlens.h"

namespace sluice::ops {

// More elements than any tensor has, and few enough that their bytes can be counted.
inline constexpr std::int64_t kMaxElements = std::int64_t{1} << 45;

// The extents of a tensor, held without an allocation.
class Dims {
 public:
  static constexpr std::size_t kMaxRank = 8;

  Dims() = default;
  Dims(std::initializer_list<std::int64_t> extents) : Dims(std::span(extents.begin(), extents.size())) {}
  // Throws Error when there are more than kMaxRank extents.
  explicit Dims(std::span<const std::int64_t> extents);

  std::size_t rank() const noexcept { return rank_; }
  std::int64_t operator[](std::size_t axis) const noexcept { return extents_[axis]; }
  std::int64_t& operator[](std::size_t axis) noexcept { return extents_[axis]; }
  std::int64_t last() const noexcept { return extents_[rank_ - 1]; }  // rank > 0
  std::span<const std::int64_t> span() const noexcept { return {extents_.data(), rank_}; }
  // Product of the extents; Error beyond kMaxElements or when one is negative. A scalar has 1.
  std::int64_t elements() const;
  bool operator==(const Dims& other) const noexcept;

 private:
  std::array<std::int64_t, kMaxRank> extents_{};
  std::size_t rank_ = 0;
};

// One input of a node. `data` may be unaligned and is null when the tensor is empty or the input absent.
struct Argument {
  int index = 0;          // position among the node's inputs
  std::string_view name;  // its name in the operator's contract
  bool present = false;
  DType dtype = DType::f32;
  Dims shape;
  const void* data = nullptr;
};

// "input 5 (beta)": how every message names an input.
std::string label(const Argument& argument);

// Each throws Error with one line: the input, what was expected, what was found.
// `reason` completes "input 5 (beta) is missing: ..." and "input 5 (beta) must be left out: ...".
void expect_present(const Argument& argument, std::string_view reason);
void expect_absent(const Argument& argument, std::string_view reason);
void expect_dtype(const Argument& argument, std::initializer_list<DType> allowed);
// T of every operator here: f32, f16 or bf16.
void expect_float(const Argument& argument);
// The input has the element type of another one.
void expect_same_dtype(const Argument& argument, const Argument& other);
// The elements lie at multiples of their size.
bool is_aligned(const void* data, DType dtype) noexcept;
void expect_aligned(const Argument& argument);
void expect_rank(const Argument& argument, std::size_t rank, std::string_view layout);
// `layout` names the axes in the message: "[B, Hv, dv, dk]".
void expect_shape(const Argument& argument, const Dims& expected, std::string_view layout);
// Every extent must be at least one, and fit 32 bits: head counts and head sizes.
void expect_positive(const Argument& argument, std::size_t axis, std::string_view axis_name);

// The elements of an int32 input at an aligned address: in place where they are, else copied.
class Indices {
 public:
  Indices() = default;
  // Expects i32 (Error otherwise). An absent input has no elements and a null address.
  explicit Indices(const Argument& argument);

  const std::int32_t* data() const noexcept { return copy_.empty() ? in_place_ : copy_.data(); }
  std::int64_t size() const noexcept { return size_; }
  std::span<const std::int32_t> span() const noexcept { return {data(), static_cast<std::size_t>(size_)}; }

 private:
  const std::int32_t* in_place_ = nullptr;
  std::int64_t size_ = 0;
  std::vector<std::int32_t> copy_;
};

// The offsets of B rows over `tokens` tokens: i32 [B + 1], from 0, never decreasing, to `tokens`; equal neighbours are
// an empty row. Returns B.
std::int64_t expect_offsets(const Argument& argument, const Indices& offsets, std::int64_t tokens);

// The same complaint for offsets that another check found wrong.
[[noreturn]] void refuse_offsets(const Argument& argument, const CuSeqlensCheck& wrong, std::int64_t tokens);

}  // namespace sluice::ops

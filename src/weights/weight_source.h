// Canonical weights as row streams over the mapped checkpoint: the only executor of the weight table.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "architecture/weight_table.h"
#include "base/shape.h"

namespace sluice {

// Consecutive elements of a canonical weight that lie together in one mapped file.
struct WeightPiece {
  DType dtype = DType::bf16;          // f32, f16 or bf16; pieces of one weight may differ
  std::span<const std::byte> bytes;   // possibly unaligned; valid as long as the checkpoint lives
};

// A canonical weight, not yet read: its pieces in row-major order, and what happens to each value.
struct CanonicalWeight {
  std::string name;
  Shape shape;
  std::vector<WeightPiece> pieces;
  Elementwise elementwise = Elementwise::none;
  std::uint64_t elements() const;
  // The one dtype of all pieces; the widest (f32) when they differ.
  DType dtype() const;
};

// Widens elements [first, first + out.size()) of a weight, exactly, and applies its elementwise step in `T` (float or double).
template <typename T>
void read_elements(const CanonicalWeight& weight, std::uint64_t first, std::span<T> out);

// The whole weight, widened: for the reference and for small tensors.
template <typename T>
std::vector<T> read_all(const CanonicalWeight& weight);

}  // namespace sluice

// One extent of a tensor whose size may be known only at run time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// A number, or a symbol such as "batch_size", "num_blocks", "past_sequence_length".
struct Extent {
  std::int64_t value = -1;  // -1: symbolic
  std::string symbol;
  bool operator==(const Extent&) const = default;
};

using Extents = std::vector<Extent>;

inline Extent extent(std::int64_t value) { return {value, {}}; }
inline Extent extent(std::string_view symbol) { return {-1, std::string(symbol)}; }

}  // namespace sluice

// The part of convert.h that is compiled once a level.
#pragma once

#include "kernels/cpu/convert.h"

namespace sluice {

namespace avx2 {
// Steps none and plus_one; adds to all counts but `elements`.
void convert_span(const ConvertArgs& args, ConvertCounts& counts) noexcept;
}  // namespace avx2

namespace avx512 {
void convert_span(const ConvertArgs& args, ConvertCounts& counts) noexcept;
}  // namespace avx512

}  // namespace sluice

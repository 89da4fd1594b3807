// The part of the causal convolution that is compiled once a level: a block of channels of every row, on one thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/causal_conv.h"

namespace sluice {

constexpr std::int64_t kConvBlockChannels = 1024;

struct ConvBlock {
  std::int64_t first = 0;      // channel
  std::int64_t count = 0;      // channels, <= kConvBlockChannels
  float* weight = nullptr;     // scratch [kernel, kConvBlockChannels] f32
  std::byte* state = nullptr;  // scratch [state_length, kConvBlockChannels] type
};

namespace avx2 {
void causal_conv_block(const CausalConvArgs& args, const ConvBlock& block) noexcept;
}
namespace avx512 {
void causal_conv_block(const CausalConvArgs& args, const ConvBlock& block) noexcept;
}

}  // namespace sluice

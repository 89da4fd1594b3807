#include "kernels/cpu/causal_conv.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/causal_conv_core.h"
#include "kernels/cpu/float_types.h"

namespace sluice {
namespace {

// One channel of one row: what stands at a local position, before 0 in the state and from 0 on in the input.
template <typename T>
struct Channel {
  const CausalConvArgs& args;
  std::int64_t row;
  std::int64_t channel;

  T at(std::int64_t position) const {
    const CausalConvShape& shape = args.shape;
    if (position >= 0) {
      return static_cast<const T*>(args.input)[(args.cu_seqlens[row] + position) * shape.channels + channel];
    }
    if (!args.initial_state) return T{};
    const std::int64_t length = shape.state_length();
    const T* state = static_cast<const T*>(args.initial_state) + (row * shape.channels + channel) * length;
    return state[length + position];
  }
};

template <typename T>
void convolve_channel(const Channel<T>& x, std::int64_t tokens) {
  const CausalConvArgs& args = x.args;
  const CausalConvShape& shape = args.shape;
  const T* weight = static_cast<const T*>(args.weight) + x.channel * shape.kernel;
  T* y = static_cast<T*>(args.output) + args.cu_seqlens[x.row] * shape.channels + x.channel;
  for (std::int64_t t = 0; t < tokens; ++t) {
    double sum = args.bias ? double{to_f32(static_cast<const T*>(args.bias)[x.channel])} : 0.0;
    for (std::int64_t j = 0; j < shape.kernel; ++j) {
      sum += double{to_f32(weight[j])} * double{to_f32(x.at(t - (shape.kernel - 1 - j) * shape.dilation))};
    }
    if (args.activation == ConvActivation::silu) sum /= 1.0 + std::exp(-sum);
    y[t * shape.channels] = from_f32<T>(static_cast<float>(sum));
  }
}

template <typename T>
void keep_state_and_capture(const Channel<T>& x, std::int64_t tokens) {
  const CausalConvArgs& args = x.args;
  const CausalConvShape& shape = args.shape;
  const std::int64_t length = shape.state_length();
  T* state = static_cast<T*>(args.final_state) + (x.row * shape.channels + x.channel) * length;
  for (std::int64_t j = 0; j < length; ++j) state[j] = x.at(tokens - length + j);  // never reads what it has written
  if (!args.capture) return;
  T* capture = static_cast<T*>(args.capture) + x.row * shape.capture_capacity * shape.channels + x.channel;
  const std::int64_t wanted = args.capture_count ? args.capture_count[x.row] : 0;
  for (std::int64_t slot = 0; slot < shape.capture_capacity; ++slot) {
    capture[slot * shape.channels] = slot < std::min(wanted, tokens) ? x.at(slot) : T{};
  }
}

void scalar_channels(const CausalConvArgs& args, const ConvBlock& block) noexcept {
  with_float_type(args.type, [&](auto type) {
    for (std::int64_t row = 0; row < args.shape.rows; ++row) {
      const std::int64_t tokens = args.cu_seqlens[row + 1] - args.cu_seqlens[row];
      for (std::int64_t c = block.first; c < block.first + block.count; ++c) {
        const Channel<decltype(type)> channel{args, row, c};
        convolve_channel(channel, tokens);
        keep_state_and_capture(channel, tokens);
      }
    }
  });
}

std::size_t padded_block_bytes(const CausalConvShape& shape, DType type) noexcept {
  const std::size_t channel_bytes = static_cast<std::size_t>(shape.kernel) * sizeof(float) +
                                    static_cast<std::size_t>(shape.state_length()) * dtype_bytes(type);
  return (channel_bytes * kConvBlockChannels + 63) / 64 * 64;
}

std::int64_t block_count(const CausalConvShape& shape) noexcept {
  return (shape.channels + kConvBlockChannels - 1) / kConvBlockChannels;
}

}  // namespace

std::size_t causal_conv_scratch_bytes(const CausalConvShape& shape, DType type) noexcept {
  return static_cast<std::size_t>(block_count(shape)) * padded_block_bytes(shape, type);
}

void causal_conv(Level level, const CausalConvArgs& args, std::span<std::byte> scratch, Executor& executor) noexcept {
  const CausalConvShape& shape = args.shape;
  const std::size_t block_bytes = padded_block_bytes(shape, args.type);
  const auto run = [&](std::int64_t i) noexcept {
    ConvBlock block;
    block.first = i * kConvBlockChannels;
    block.count = std::min(kConvBlockChannels, shape.channels - block.first);
    std::byte* slice = scratch.data() + static_cast<std::size_t>(i) * block_bytes;
    block.weight = reinterpret_cast<float*>(slice);
    block.state = slice + static_cast<std::size_t>(shape.kernel * kConvBlockChannels) * sizeof(float);
    switch (level) {
      case Level::scalar:
        return scalar_channels(args, block);
      case Level::avx2:
        return avx2::causal_conv_block(args, block);
      case Level::avx512:
      case Level::amx:
        return avx512::causal_conv_block(args, block);
    }
  };
  // A decode step of a few rows costs no more than waking a thread.
  constexpr std::int64_t kSmallCall = 64 << 10;
  const std::int64_t blocks = block_count(shape);
  if (shape.tokens * shape.channels <= kSmallCall) {
    for (std::int64_t i = 0; i < blocks; ++i) run(i);
  } else {
    parallel_for(executor, blocks, run);
  }
}

}  // namespace sluice

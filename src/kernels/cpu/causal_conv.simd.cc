#include <hwy/cache_control.h>

#include <cstring>

#include "kernels/cpu/causal_conv_core.h"
#include "kernels/cpu/float_types.h"
#include "kernels/cpu/vector_math.h"

namespace sluice::SLUICE_LEVEL {
namespace {

constexpr int kTokens = 4;  // outputs of a register tile: every input is loaded and widened 7/4 times instead of 4

constexpr std::int64_t kStride = kConvBlockChannels;

template <ConvActivation kActivation>
HWY_INLINE Floats activated(Floats v) {
  return kActivation == ConvActivation::silu ? silu(v) : v;
}

// The view of one channel block that the functions below share.
template <typename T>
struct Block {
  const CausalConvArgs& args;
  const ConvBlock& block;

  const T* input(std::int64_t token) const {
    return static_cast<const T*>(args.input) + token * args.shape.channels + block.first;
  }
  T* output(std::int64_t token) const {
    return static_cast<T*>(args.output) + token * args.shape.channels + block.first;
  }
  const T* weight() const { return static_cast<const T*>(args.weight) + block.first * args.shape.kernel; }
  const T* bias() const { return args.bias ? static_cast<const T*>(args.bias) + block.first : nullptr; }
  std::int64_t state_offset(std::int64_t row) const {
    return (row * args.shape.channels + block.first) * args.shape.state_length();
  }
  T* state_row(std::int64_t j) const { return reinterpret_cast<T*>(block.state) + j * kStride; }

  // The strip of channels at a local position of the row that starts at `first_token`.
  const T* at(std::int64_t first_token, std::int64_t position) const {
    return position >= 0 ? input(first_token + position) : state_row(args.shape.state_length() + position);
  }
};

// [count, length] -> [length, count] rows of kStride elements.
template <typename T>
void transpose_in(const T* from, std::int64_t count, std::int64_t length, T* to) {
  std::int64_t c = 0;
  if (length == 3) {
    const typename Stored<T>::Tag tag;
    for (; c + kLanes <= count; c += kLanes) {
      Raw<T> a, b, d;
      hn::LoadInterleaved3(tag, lanes_of(from + 3 * c), a, b, d);
      hn::StoreU(a, tag, lanes_of(to + c));
      hn::StoreU(b, tag, lanes_of(to + kStride + c));
      hn::StoreU(d, tag, lanes_of(to + 2 * kStride + c));
    }
  }
  for (; c < count; ++c) {
    for (std::int64_t j = 0; j < length; ++j) to[j * kStride + c] = from[c * length + j];
  }
}

template <typename T>
void widen_weights(const Block<T>& x) {
  const std::int64_t kernel = x.args.shape.kernel;
  HWY_ALIGN T tap[kStride] = {};
  for (std::int64_t j = 0; j < kernel; ++j) {
    for (std::int64_t c = 0; c < x.block.count; ++c) tap[c] = x.weight()[c * kernel + j];
    for (std::int64_t c = 0; c < kStride; c += kLanes) store(load(tap + c), x.block.weight + j * kStride + c);
  }
}

template <typename T>
void fetch_state(const Block<T>& x, std::int64_t row) {
  const std::int64_t length = x.args.shape.state_length();
  if (x.args.initial_state) {
    transpose_in(static_cast<const T*>(x.args.initial_state) + x.state_offset(row), x.block.count, length,
                 x.state_row(0));
  } else {
    std::memset(static_cast<void*>(x.state_row(0)), 0, static_cast<std::size_t>(length * kStride) * sizeof(T));
  }
}

template <typename T>
void keep_state(const Block<T>& x, std::int64_t row, std::int64_t first_token, std::int64_t tokens) {
  const std::int64_t length = x.args.shape.state_length();
  T* to = static_cast<T*>(x.args.final_state) + x.state_offset(row);
  std::int64_t c = 0;
  if (length == 3) {
    const typename Stored<T>::Tag tag;
    const T* a = x.at(first_token, tokens - 3);
    const T* b = x.at(first_token, tokens - 2);
    const T* d = x.at(first_token, tokens - 1);
    for (; c + kLanes <= x.block.count; c += kLanes) {
      hn::StoreInterleaved3(hn::LoadU(tag, lanes_of(a + c)), hn::LoadU(tag, lanes_of(b + c)),
                            hn::LoadU(tag, lanes_of(d + c)), tag, lanes_of(to + 3 * c));
    }
  }
  for (std::int64_t j = 0; j < length; ++j) {
    const T* from = x.at(first_token, tokens - length + j);
    for (std::int64_t rest = c; rest < x.block.count; ++rest) to[rest * length + j] = from[rest];
  }
}

// One vector of one output, any kernel and dilation: bias, then the taps from the oldest to the newest.
template <typename T, ConvActivation kActivation>
HWY_INLINE void convolve_vector(const Block<T>& x, std::int64_t first_token, std::int64_t t, std::int64_t c) {
  const CausalConvShape& shape = x.args.shape;
  const std::int64_t left = x.block.count - c;
  Floats sum = x.bias() ? load_up_to(x.bias() + c, left) : zeros();
  for (std::int64_t j = 0; j < shape.kernel; ++j) {
    const T* tap = x.at(first_token, t - (shape.kernel - 1 - j) * shape.dilation);
    sum = hn::MulAdd(load(x.block.weight + j * kStride + c), load_up_to(tap + c, left), sum);
  }
  store_up_to(activated<kActivation>(sum), x.output(first_token + t) + c, left);
}

// Four taps without dilation, kCount <= kTokens outputs at a time, whole vectors; returns the first channel left over.
// Meanwhile asks for the rows of the next outputs: every row's strip begins on another page.
template <typename T, ConvActivation kActivation, int kCount>
std::int64_t convolve_tokens(const Block<T>& x, std::int64_t first_token, std::int64_t t, std::int64_t tokens) {
  const float* weight = x.block.weight;
  const T* rows[kCount + 3];
  for (int i = 0; i < kCount + 3; ++i) rows[i] = x.at(first_token, t - 3 + i);
  const std::int64_t to_next = smaller(t + kTokens, tokens - kCount) - t;
  const std::int64_t row_stride = x.args.shape.channels;
  T* out = x.output(first_token + t);
  std::int64_t c = 0;
  for (; c + kLanes <= x.block.count; c += kLanes) {
    Floats w[4];
    for (int j = 0; j < 4; ++j) w[j] = load(weight + j * kStride + c);
    const Floats bias = x.bias() ? load(x.bias() + c) : zeros();
    Floats in[kCount + 3];
    for (int i = 0; i < kCount + 3; ++i) in[i] = load(rows[i] + c);
    for (int i = 0; i < kCount; ++i) {
      hwy::Prefetch(rows[i + 3] + to_next * row_stride + c);
      __builtin_prefetch(out + (to_next + i) * row_stride + c, 1);
    }
    for (int i = 0; i < kCount; ++i) {
      Floats sum = hn::MulAdd(w[0], in[i], bias);
      for (int j = 1; j < 4; ++j) sum = hn::MulAdd(w[j], in[i + j], sum);
      store(activated<kActivation>(sum), out + i * row_stride + c);
    }
  }
  return c;
}

template <typename T, ConvActivation kActivation>
std::int64_t convolve_some_tokens(const Block<T>& x, std::int64_t first_token, std::int64_t t, std::int64_t tokens) {
  switch (tokens - t) {
    case 1:
      return convolve_tokens<T, kActivation, 1>(x, first_token, t, tokens);
    case 2:
      return convolve_tokens<T, kActivation, 2>(x, first_token, t, tokens);
    case 3:
      return convolve_tokens<T, kActivation, 3>(x, first_token, t, tokens);
    default:
      return convolve_tokens<T, kActivation, kTokens>(x, first_token, t, tokens);
  }
}

template <typename T, ConvActivation kActivation>
void convolve_row(const Block<T>& x, std::int64_t first_token, std::int64_t tokens) {
  const bool common = x.args.shape.kernel == 4 && x.args.shape.dilation == 1;
  for (std::int64_t t = 0; t < tokens; t += kTokens) {
    const std::int64_t done = common ? convolve_some_tokens<T, kActivation>(x, first_token, t, tokens) : 0;
    for (std::int64_t i = t; i < smaller(t + kTokens, tokens); ++i) {
      for (std::int64_t c = done; c < x.block.count; c += kLanes) convolve_vector<T, kActivation>(x, first_token, i, c);
    }
  }
}

// A row of one token with four taps, no dilation, whole vectors of channels: state, weights and new state in one pass,
// no transposed copies.
template <typename T, ConvActivation kActivation>
void decode_row(const Block<T>& x, std::int64_t row, std::int64_t token) {
  const typename Stored<T>::Tag tag;
  const T* state = static_cast<const T*>(x.args.initial_state) + x.state_offset(row);
  T* kept = static_cast<T*>(x.args.final_state) + x.state_offset(row);
  const T* weight = x.weight();
  for (std::int64_t c = 0; c < x.block.count; c += kLanes) {
    Raw<T> w0, w1, w2, w3, s0, s1, s2;
    hn::LoadInterleaved4(tag, lanes_of(weight + 4 * c), w0, w1, w2, w3);
    hn::LoadInterleaved3(tag, lanes_of(state + 3 * c), s0, s1, s2);
    const Raw<T> newest = hn::LoadU(tag, lanes_of(x.input(token) + c));
    using S = Stored<T>;
    Floats sum = x.bias() ? load(x.bias() + c) : zeros();
    sum = hn::MulAdd(S::widen(w0), S::widen(s0), sum);
    sum = hn::MulAdd(S::widen(w1), S::widen(s1), sum);
    sum = hn::MulAdd(S::widen(w2), S::widen(s2), sum);
    sum = hn::MulAdd(S::widen(w3), S::widen(newest), sum);
    store(activated<kActivation>(sum), x.output(token) + c);
    hn::StoreInterleaved3(s1, s2, newest, tag, lanes_of(kept + 3 * c));
  }
}

template <typename T>
void capture_row(const Block<T>& x, std::int64_t row, std::int64_t first_token, std::int64_t tokens) {
  const CausalConvShape& shape = x.args.shape;
  if (!x.args.capture) return;
  const std::int64_t wanted = x.args.capture_count ? x.args.capture_count[row] : 0;
  const std::int64_t kept = wanted < tokens ? wanted : tokens;
  const std::size_t bytes = static_cast<std::size_t>(x.block.count) * sizeof(T);
  for (std::int64_t slot = 0; slot < shape.capture_capacity; ++slot) {
    const std::int64_t offset = (row * shape.capture_capacity + slot) * shape.channels + x.block.first;
    T* to = static_cast<T*>(x.args.capture) + offset;
    if (slot < kept) {
      std::memcpy(static_cast<void*>(to), x.input(first_token + slot), bytes);
    } else {
      std::memset(static_cast<void*>(to), 0, bytes);
    }
  }
}

template <typename T, ConvActivation kActivation>
void run_block(const Block<T>& x) {
  const CausalConvShape& shape = x.args.shape;
  const bool one_pass = shape.kernel == 4 && shape.dilation == 1 && x.args.initial_state && x.block.count % kLanes == 0;
  bool have_weights = false;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const std::int64_t first_token = x.args.cu_seqlens[row];
    const std::int64_t tokens = x.args.cu_seqlens[row + 1] - first_token;
    if (tokens == 1 && one_pass) {
      decode_row<T, kActivation>(x, row, first_token);
    } else {
      if (!have_weights) widen_weights(x);
      have_weights = true;
      fetch_state(x, row);
      convolve_row<T, kActivation>(x, first_token, tokens);
      keep_state(x, row, first_token, tokens);
    }
    capture_row(x, row, first_token, tokens);
  }
}

}  // namespace

void causal_conv_block(const CausalConvArgs& args, const ConvBlock& block) noexcept {
  with_float_type(args.type, [&](auto type) {
    const Block<decltype(type)> x{args, block};
    args.activation == ConvActivation::silu ? run_block<decltype(type), ConvActivation::silu>(x)
                                            : run_block<decltype(type), ConvActivation::none>(x);
  });
}

}  // namespace sluice::SLUICE_LEVEL

// Problems for the tests of the gated delta rule kernels: random inputs of any shape and dtype, and what a run gave.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/executor.h"
#include "base/float16.h"
#include "kernels/cpu/gated_delta_net.h"

namespace sluice::gdn_test {

// Values rounded to a dtype, kept at an odd byte address: unaligned input is normal.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const std::vector<float>& values, DType dtype) : dtype_(dtype), count_(values.size()) {
    bytes_.resize(values.size() * dtype_bytes(dtype) + 1);
    for (std::size_t i = 0; i < values.size(); ++i) set(i, values[i]);
  }
  void* data() { return bytes_.data() + 1; }
  const void* data() const { return bytes_.data() + 1; }
  DType dtype() const { return dtype_; }
  // Elements [from, from + count) as a buffer of their own.
  Buffer slice(std::int64_t from, std::int64_t count) const {
    Buffer out(std::vector<float>(static_cast<std::size_t>(count)), dtype_);
    if (count > 0)
      std::memcpy(out.data(), at(static_cast<std::size_t>(from)),
                  static_cast<std::size_t>(count) * dtype_bytes(dtype_));
    return out;
  }
  const void* at(std::size_t element) const { return bytes_.data() + 1 + element * dtype_bytes(dtype_); }
  std::size_t size() const { return count_; }
  float get(std::size_t i) const {
    if (dtype_ == DType::f32) {
      float value;
      std::memcpy(&value, at(i), sizeof value);
      return value;
    }
    std::uint16_t bits;
    std::memcpy(&bits, at(i), sizeof bits);
    return dtype_ == DType::f16 ? to_f32(f16{bits}) : to_f32(bf16{bits});
  }
  void set(std::size_t i, float value) {
    std::byte* to = bytes_.data() + 1 + i * dtype_bytes(dtype_);
    if (dtype_ == DType::f32) {
      std::memcpy(to, &value, sizeof value);
    } else {
      const std::uint16_t bits = dtype_ == DType::f16 ? to_f16(value).bits : to_bf16(value).bits;
      std::memcpy(to, &bits, sizeof bits);
    }
  }
  std::vector<float> values() const {
    std::vector<float> out(count_);
    for (std::size_t i = 0; i < count_; ++i) out[i] = get(i);
    return out;
  }

 private:
  DType dtype_ = DType::f32;
  std::size_t count_ = 0;
  std::vector<std::byte> bytes_;
};

struct Options {
  std::vector<std::int64_t> lengths{1};  // tokens of each row
  std::int64_t q_heads = 2, k_heads = 2, v_heads = 4, k_dim = 32, v_dim = 32;
  UpdateRule rule = UpdateRule::gated_delta;
  GateActivation gate = GateActivation::softplus;
  BetaActivation beta = BetaActivation::sigmoid;
  bool qk_l2_norm = true;
  bool per_key = false;
  bool has_initial_state = true;
  DType dtype = DType::f32;
  DType gate_dtype = DType::f32;
  float scale = 0.0f;
  float decay_low = -3.0f, decay_high = 3.0f;  // raw decay; with GateActivation::none it is g
  float key_length = 1.0f;                     // of keys and queries when qk_l2_norm is off
  std::int64_t capacity = 0;
  std::vector<std::int32_t> capture_counts;
  unsigned seed = 1;

  std::int64_t tokens() const {
    std::int64_t sum = 0;
    for (const std::int64_t length : lengths) sum += length;
    return sum;
  }
  std::int64_t rows() const { return static_cast<std::int64_t>(lengths.size()); }
};

struct Result {
  std::vector<float> output;  // [tokens, output_heads, v_dim]
  std::vector<float> state;   // [rows, v_heads, v_dim, k_dim]
  std::vector<float> capsule;
  bool operator==(const Result&) const = default;
};

// Bit for bit: NaN equals itself, -0 is not 0.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

struct Problem {
  Options options;
  GatedDeltaNetShape shape;
  Buffer query, key, value, decay, beta, a_log, dt_bias, state;
  std::vector<std::int32_t> offsets;

  explicit Problem(const Options& o) : options(o) {
    shape = {o.tokens(), o.rows(), o.q_heads, o.k_heads, o.v_heads, o.k_dim, o.v_dim, o.capacity, o.per_key};
    std::mt19937 random(o.seed);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> raw_decay(o.decay_low, o.decay_high);
    const auto draw = [](std::int64_t count, auto&& one) {
      std::vector<float> out(static_cast<std::size_t>(count));
      for (float& x : out) x = one();
      return out;
    };
    const auto vectors = [&](std::int64_t heads) {
      std::vector<float> out = draw(o.tokens() * heads * o.k_dim, [&] { return normal(random); });
      if (!o.qk_l2_norm) set_length(out, o.k_dim, o.key_length);
      return Buffer(out, o.dtype);
    };
    query = vectors(o.q_heads);
    key = vectors(o.k_heads);
    value = Buffer(draw(o.tokens() * o.v_heads * o.v_dim, [&] { return normal(random); }), o.dtype);
    decay = Buffer(draw(o.tokens() * shape.decay_width(), [&] { return raw_decay(random); }), o.gate_dtype);
    const bool logits = o.beta != BetaActivation::none;
    beta = Buffer(draw(o.tokens() * o.v_heads,
                       [&] { return logits ? normal(random) : 0.5f + 0.25f * std::tanh(normal(random)); }),
                  o.gate_dtype);
    a_log = Buffer(draw(o.v_heads, [&] { return 0.3f * normal(random); }), DType::f32);
    dt_bias = Buffer(draw(o.v_heads, [&] { return normal(random); }), DType::f32);
    state = Buffer(draw(o.rows() * o.v_heads * o.v_dim * o.k_dim, [&] { return 0.3f * normal(random); }), DType::f32);
    offsets.push_back(0);
    for (const std::int64_t length : o.lengths) offsets.push_back(offsets.back() + static_cast<std::int32_t>(length));
  }

  GatedDeltaNetArgs args() const {
    const Options& o = options;
    GatedDeltaNetArgs a;
    a.shape = shape;
    a.rule = o.rule;
    a.gate_activation = has_decay(o.rule) ? o.gate : GateActivation::none;
    a.beta_activation = o.beta;
    a.scale = o.scale;
    a.qk_l2_norm = o.qk_l2_norm;
    a.dtype = o.dtype;
    a.query = {query.data(), o.q_heads * o.k_dim, o.k_dim};
    a.key = {key.data(), o.k_heads * o.k_dim, o.k_dim};
    a.value = {value.data(), o.v_heads * o.v_dim, o.v_dim};
    a.gate_dtype = o.gate_dtype;
    const std::int64_t width = o.per_key ? o.k_dim : 1;
    if (has_decay(o.rule)) a.decay = {decay.data(), o.v_heads * width, width};
    if (has_delta(o.rule)) a.beta = {beta.data(), o.v_heads, 1};
    if (a.gate_activation != GateActivation::none) {
      a.a_log = static_cast<const float*>(a_log.data());
      a.dt_bias = static_cast<const float*>(dt_bias.data());
    }
    a.cu_seqlens = offsets.data();
    a.initial_state = o.has_initial_state ? static_cast<const float*>(state.data()) : nullptr;
    a.capture_count = o.capture_counts.empty() ? nullptr : o.capture_counts.data();
    return a;
  }

  Result run(Level level, Executor& executor) const { return run(level, executor, args()); }

  // Runs arguments made from args(); outputs are the call's own, unaligned, with a guard behind each.
  Result run(Level level, Executor& executor, GatedDeltaNetArgs a) const {
    constexpr float kGuard = 12345.0f;
    const auto guarded = [&](std::int64_t count, DType dtype) {
      Buffer out(std::vector<float>(static_cast<std::size_t>(count) + 1, kGuard), dtype);
      return out;
    };
    const std::int64_t outputs = shape.tokens * shape.output_heads() * shape.v_dim;
    const std::int64_t states = shape.rows * shape.v_heads * shape.v_dim * shape.k_dim;
    Buffer output = guarded(outputs, a.dtype), final_state = guarded(states, DType::f32);
    Buffer capsule = guarded(shape.rows * shape.capsule_width(), DType::f32);
    a.output = output.data();
    a.final_state = static_cast<float*>(final_state.data());
    if (shape.capacity > 0) a.capsule = static_cast<float*>(capsule.data());
    // Whatever the scratch held before may not matter: all ones reads as NaN.
    std::vector<std::byte> scratch(gated_delta_net_scratch_bytes(level, a.shape), std::byte{0xff});
    gated_delta_net(level, a, scratch, executor);
    Result result;
    const auto take = [&](const Buffer& buffer, DType dtype) {
      std::vector<float> values = buffer.values();
      const float guard = Buffer({kGuard}, dtype).get(0);
      EXPECT_EQ(values.back(), guard) << "written beyond the end";
      values.pop_back();
      return values;
    };
    result.output = take(output, a.dtype);
    result.state = take(final_state, DType::f32);
    result.capsule = take(capsule, DType::f32);
    return result;
  }

  // Tokens [begin, end) of one row as a problem of one row; its state is the row's initial one.
  Problem part(std::int64_t row, std::int64_t begin, std::int64_t end) const {
    Problem out = *this;
    const std::int64_t first = offsets[static_cast<std::size_t>(row)] + begin;
    const std::int64_t count = end - begin;
    const auto cut = [&](const Buffer& from, std::int64_t width) { return from.slice(first * width, count * width); };
    out.options.lengths = {count};
    out.shape.tokens = count, out.shape.rows = 1;
    out.query = cut(query, shape.q_heads * shape.k_dim);
    out.key = cut(key, shape.k_heads * shape.k_dim);
    out.value = cut(value, shape.v_heads * shape.v_dim);
    out.decay = cut(decay, shape.decay_width());
    out.beta = cut(beta, shape.v_heads);
    out.state = state.slice(row * state_floats(), state_floats());
    out.offsets = {0, static_cast<std::int32_t>(count)};
    if (!options.capture_counts.empty())
      out.options.capture_counts = {options.capture_counts[static_cast<std::size_t>(row)]};
    return out;
  }
  std::int64_t state_floats() const { return shape.v_heads * shape.v_dim * shape.k_dim; }
  std::int64_t output_floats() const { return shape.output_heads() * shape.v_dim; }  // of a token

 private:
  static void set_length(std::vector<float>& vectors, std::int64_t dim, float length) {
    for (std::size_t at = 0; at < vectors.size(); at += static_cast<std::size_t>(dim)) {
      double sum = 0;
      for (std::size_t i = 0; i < static_cast<std::size_t>(dim); ++i) sum += double{vectors[at + i]} * vectors[at + i];
      const double factor = length / std::sqrt(sum);
      for (std::size_t i = 0; i < static_cast<std::size_t>(dim); ++i) vectors[at + i] *= static_cast<float>(factor);
    }
  }
};

// Half a unit in the last place of a dtype, relative.
inline double rounding(DType dtype) { return dtype == DType::f32 ? 0x1p-24 : dtype == DType::f16 ? 0x1p-11 : 0x1p-8; }

// Expects |actual - expected| <= bound * largest expected + rounding * |expected| everywhere.
inline void expect_close(const std::vector<float>& actual, const std::vector<float>& expected, double bound,
                         DType dtype, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 0;
  for (const float x : expected) largest = std::max(largest, std::abs(double{x}));
  for (std::size_t i = 0; i < actual.size(); ++i) {
    // Both sides were rounded, from values that may differ by the bound: up to two halves of a unit.
    const double tolerance =
        bound * largest + (dtype == DType::f32 ? 0 : 2.01 * rounding(dtype) * std::abs(double{expected[i]}));
    const double difference = std::abs(double{actual[i]} - double{expected[i]});
    ASSERT_TRUE(difference <= tolerance) << fmt::format("{}: element {} is {}, expected {}, tolerance {}", what, i,
                                                        actual[i], expected[i], tolerance);
  }
}

// Relative error a level may show against the double specification: every element is a chain of k_dim products, read
// through the updates of the tokens that still matter (at most a few chunks, each contracting), in f32.
inline double tolerance(const Options& o) { return 0x1p-24 * (4.0 * std::sqrt(static_cast<double>(o.k_dim)) + 128.0); }

}  // namespace sluice::gdn_test

#include "ops/validate_varlen_causal_conv.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace sluice::ops {
namespace {

constexpr std::int64_t kMaxCapacity = 8;  // tokens a row

ConvActivation parse_activation(std::string_view text) {
  if (text == "none") return ConvActivation::none;
  if (text == "silu" || text == "swish") return ConvActivation::silu;
  refuse_text("activation", "none, silu or swish", text);
}

void read_shape(const VarlenCausalConvAttributes& attributes, const VarlenCausalConvInputs& in,
                CausalConvShape& shape) {
  expect_float(in.input);
  expect_same_dtype(in.weight, in.input);
  expect_same_dtype(in.initial_state, in.input);
  expect_rank(in.input, 2, "[tokens, C]");
  expect_rank(in.weight, 3, "[C, 1, K]");
  expect_positive(in.input, 1, "C");
  expect_positive(in.weight, 2, "K");
  shape.tokens = in.input.shape[0];
  shape.channels = in.input.shape[1];
  shape.kernel = in.weight.shape[2];
  shape.dilation = attributes.dilation;
  shape.capture_capacity = attributes.capacity;
  expect_shape(in.weight, {shape.channels, 1, shape.kernel}, "[C, 1, K]");
}

// Rows of state must be countable also where there is none, and so must a block of channels beside its weights.
void check_sizes(const CausalConvShape& shape) {
  constexpr std::int64_t kBlock = 256;
  Dims{std::max<std::int64_t>(shape.rows, 1), shape.channels + kBlock, shape.kernel + shape.state_length()}.elements();
}

}  // namespace

VarlenCausalConvAttributes read_varlen_causal_conv(const Attributes& attributes) {
  VarlenCausalConvAttributes result;
  result.activation = parse_activation(attributes.text("activation"));
  result.dilation = attributes.integer_in("dilation", 1, std::numeric_limits<std::int32_t>::max());
  // The two belong to kernel_delta, which is refused below: at their defaults they mean nothing.
  for (const char* name : {"group_size", "delta_offset"}) {
    const std::int64_t otherwise = attributes.spec().attribute(name)->integer;
    const std::int64_t value = attributes.integer(name);
    if (value == otherwise) continue;
    fail("attribute {}: expected {}, as kernel_delta is not served on a CPU, found {}", name, otherwise, value);
  }
  result.capacity = attributes.integer_in("state_update_capacity", 0, kMaxCapacity);
  return result;
}

VarlenCausalConvCall validate_varlen_causal_conv(const VarlenCausalConvAttributes& attributes,
                                                 const VarlenCausalConvInputs& in) {
  expect_absent(in.kernel_delta, "it is not served on a CPU");
  expect_absent(in.previous_mask, "it is not served on a CPU");
  VarlenCausalConvCall call;
  CausalConvArgs& args = call.args;
  CausalConvShape& shape = args.shape;
  read_shape(attributes, in, shape);
  args.type = in.input.dtype;
  args.activation = attributes.activation;
  call.cu_seqlens = Indices(in.cumulative_sequence_length);
  shape.rows = expect_offsets(in.cumulative_sequence_length, call.cu_seqlens, shape.tokens);
  args.cu_seqlens = call.cu_seqlens.data();
  check_sizes(shape);
  call.state = {shape.rows, shape.channels, shape.state_length()};
  expect_shape(in.initial_state, call.state, "[B, C, (K - 1) * dilation]");
  if (in.bias.present) {
    expect_same_dtype(in.bias, in.input);
    expect_shape(in.bias, {shape.channels}, "[C]");
    args.bias = in.bias.data;
  }
  if (attributes.capacity == 0) {
    expect_absent(in.capture_count, "state_update_capacity is 0");
  } else {
    expect_present(in.capture_count, "state_update_capacity is not 0");
    call.capture_count = Indices(in.capture_count);
    expect_shape(in.capture_count, {shape.rows}, "[B]");
    args.capture_count = call.capture_count.data();
  }
  args.input = in.input.data;
  args.weight = in.weight.data;
  args.initial_state = in.initial_state.data;
  call.output = in.input.shape;
  call.capture = {shape.rows, attributes.capacity, shape.channels};
  call.capture.elements();
  return call;
}

}  // namespace sluice::ops

#include "tests/support/random_node.h"

#include <limits>

#include "opset/operator.h"
#include "tests/support/gated_delta_net_node.h"
#include "tests/support/paged_attention_node.h"

namespace sluice::ops {
namespace {

std::vector<std::int32_t> random_offsets(Choices& choices, std::int64_t rows, std::int64_t longest) {
  std::vector<std::int32_t> offsets{0};
  for (std::int64_t row = 0; row < rows; ++row) {
    offsets.push_back(offsets.back() + static_cast<std::int32_t>(choices.integer(0, longest)));
  }
  return offsets;
}

DType random_dtype(Choices& choices) { return choices.one_of({DType::f32, DType::f16, DType::bf16}); }

std::uint64_t random_seed(Choices& choices) {
  return static_cast<std::uint64_t>(choices.integer(0, std::numeric_limits<std::int32_t>::max()));
}

NodeCase random_gated_delta_net(Choices& choices) {
  GatedDeltaNetCase c;
  c.layout =
      choices.one_of({QkvLayout::split, QkvLayout::fused, QkvLayout::dense, QkvLayout::dense_fused, QkvLayout::even});
  const std::int64_t rows = choices.integer(1, 4);
  if (c.layout == QkvLayout::split || c.layout == QkvLayout::fused) {
    c.offsets = random_offsets(choices, rows, choices.one_of<std::int64_t>({3, 20, 140}));
  } else {
    const auto length = static_cast<std::int32_t>(choices.integer(0, 40));
    c.offsets = {0};
    for (std::int64_t row = 0; row < rows; ++row) c.offsets.push_back(c.offsets.back() + length);
  }
  c.k_heads = choices.integer(1, 3);
  c.v_heads = c.k_heads * choices.integer(1, 3);
  c.k_dim = choices.integer(1, 20);
  c.v_dim = choices.integer(1, 20);
  c.rule = choices.one_of({"linear", "gated", "delta", "gated_delta"});
  c.gate_activation = choices.one_of({"none", "softplus", "qwen", "sigmoid", "kda"});
  c.beta_activation = choices.one_of({"none", "sigmoid"});
  c.qk_l2_norm = choices.chance(70);
  c.per_key = choices.chance(30) && (c.rule == "gated" || c.rule == "gated_delta");
  c.dt_bias_per_key = c.per_key && choices.chance(50);
  c.dtype = random_dtype(choices);
  c.gate_dtype = choices.chance(50) ? c.dtype : DType::f32;
  const bool state_says_shape = c.layout != QkvLayout::split && c.layout != QkvLayout::dense;
  c.initial_state = state_says_shape || choices.chance(80);
  c.capacity = choices.chance(40) ? choices.integer(1, 8) : 0;
  c.capture_active = choices.chance(80);
  return make_node(c, random_seed(choices));
}

NodeCase random_varlen_linear_attention(Choices& choices) {
  Draw draw(random_seed(choices));
  const std::vector<std::int32_t> offsets = random_offsets(choices, choices.integer(0, 4), 12);
  const std::int64_t rows = static_cast<std::int64_t>(offsets.size()) - 1;
  const std::int64_t tokens = offsets.back();
  const std::int64_t k_heads = choices.integer(1, 2);
  const std::int64_t v_heads = k_heads * choices.integer(1, 3);
  const std::int64_t q_heads = choices.chance(50) ? v_heads * choices.integer(1, 2) : 1;
  const std::int64_t k_dim = choices.integer(1, 12);
  const std::int64_t v_dim = choices.integer(1, 12);
  const DType dtype = random_dtype(choices);
  const std::string rule = choices.one_of({"linear", "gated", "delta", "gated_delta"});
  const bool per_key = choices.chance(40);
  const bool softplus = choices.chance(50);
  NodeCase node;
  node.op = "VarlenLinearAttention";
  node.inputs.resize(9);
  node.inputs[0] = cast(draw.tensor({tokens, q_heads, k_dim}, -0.4f, 0.4f), dtype);
  node.inputs[1] = cast(draw.tensor({tokens, k_heads, k_dim}, -0.4f, 0.4f), dtype);
  node.inputs[2] = cast(draw.tensor({tokens, v_heads, v_dim}, -1, 1), dtype);
  node.inputs[3] = i32_tensor({rows + 1}, offsets);
  node.inputs[4] = draw.tensor({rows, v_heads, v_dim, k_dim}, -0.5f, 0.5f);
  if (rule == "gated" || rule == "gated_delta") {
    node.inputs[5] = cast(draw.tensor(per_key ? Shape{tokens, v_heads, k_dim} : Shape{tokens, v_heads}, -1, 0), dtype);
  }
  if (rule == "delta" || rule == "gated_delta") {
    node.inputs[6] = cast(draw.tensor(choices.chance(30) ? Shape{tokens, 1} : Shape{tokens, v_heads}, 0, 1), dtype);
  }
  if (softplus) {
    const Shape gate = per_key && node.inputs[5] && choices.chance(50) ? Shape{v_heads, k_dim} : Shape{v_heads};
    node.inputs[7] = draw.tensor(gate, -1, 1);
    node.inputs[8] = draw.tensor(gate, -1, 1);
  }
  node.attributes = {{"update_rule", rule},
                     {"decay_activation", softplus ? "softplus_decay" : "none"},
                     {"beta_activation", choices.one_of({"none", "sigmoid", "twice_sigmoid"})}};
  node.outputs = {OutputSpec{dtype, 3}, OutputSpec{DType::f32, 4}};
  if (choices.chance(20)) node.outputs.push_back(OutputSpec{DType::f32, 5});
  return node;
}

NodeCase random_conv(Choices& choices) {
  Draw draw(random_seed(choices));
  const std::vector<std::int32_t> offsets = random_offsets(choices, choices.integer(0, 5), 9);
  const std::int64_t rows = static_cast<std::int64_t>(offsets.size()) - 1;
  const std::int64_t channels = choices.integer(1, 70);
  const std::int64_t kernel = choices.integer(1, 5);
  const std::int64_t dilation = choices.integer(1, 3);
  const std::int64_t capacity = choices.chance(40) ? choices.integer(1, 8) : 0;
  const DType dtype = random_dtype(choices);
  NodeCase node;
  node.op = "VarlenCausalConvWithState";
  node.inputs.resize(8);
  node.inputs[0] = cast(draw.tensor({offsets.back(), channels}, -1, 1), dtype);
  node.inputs[1] = cast(draw.tensor({channels, 1, kernel}, -1, 1), dtype);
  node.inputs[2] = i32_tensor({rows + 1}, offsets);
  if (choices.chance(50)) node.inputs[3] = cast(draw.tensor({channels}, -1, 1), dtype);
  node.inputs[4] = cast(draw.tensor({rows, channels, (kernel - 1) * dilation}, -1, 1), dtype);
  if (capacity > 0) {
    std::vector<std::int32_t> counts;
    for (std::int64_t row = 0; row < rows; ++row) counts.push_back(static_cast<std::int32_t>(choices.integer(-2, 11)));
    node.inputs[5] = i32_tensor({rows}, counts);
  }
  node.attributes = {{"activation", choices.one_of({"none", "silu", "swish"})},
                     {"dilation", dilation},
                     {"state_update_capacity", capacity}};
  node.outputs = {OutputSpec{dtype, 2}, OutputSpec{dtype, 3}};
  if (capacity > 0) node.outputs.push_back(OutputSpec{dtype, 3});
  return node;
}

NodeCase random_paged(Choices& choices) {
  PagedCase c;
  const std::int64_t rows = choices.integer(0, 4);
  c.offsets = random_offsets(choices, rows, choices.one_of<std::int64_t>({1, 7}));
  c.past.clear();
  for (std::int64_t row = 0; row < rows; ++row) c.past.push_back(static_cast<std::int32_t>(choices.integer(0, 40)));
  c.kv_heads = choices.integer(1, 2);
  c.heads = c.kv_heads * choices.integer(1, 4);
  c.head_dim = choices.integer(1, 20);
  c.block_size = choices.integer(1, 17);
  c.softcap = choices.chance(30) ? 1.5f : 0.0f;
  c.window = choices.chance(40) ? choices.integer(1, 20) : -1;
  if (c.head_dim >= 4 && choices.chance(40)) {
    c.rotary_dim = 2 * choices.integer(1, c.head_dim / 2);
    c.rotary_offset = choices.integer(0, c.head_dim - c.rotary_dim);
    c.interleaved = choices.chance(50);
  }
  c.norms = choices.chance(40);
  c.sink = choices.chance(40);
  c.slots = choices.chance(30);
  c.fused = choices.chance(40);
  c.metadata = choices.chance(40);
  c.dtype = random_dtype(choices);
  c.cache = choices.chance(60) ? c.dtype : random_dtype(choices);
  return make_paged(c);
}

// The extent of a matrix: from 64 on, products with it may be taken in tiles.
std::int64_t random_extent(Choices& choices, std::int64_t low) {
  return choices.chance(30) ? choices.integer(64, 150) : choices.integer(low, 40);
}

NodeCase random_linear(Choices& choices) {
  Draw draw(random_seed(choices));
  const std::int64_t n = random_extent(choices, 0);
  const std::int64_t k = choices.integer(0, 90);
  NodeCase node;
  node.domain = "sluice";
  node.op = "Linear";
  Shape x;
  for (std::int64_t axis = choices.integer(0, 2); axis > 0; --axis) x.push_back(choices.integer(0, 6));
  x.push_back(k);
  node.outputs = {OutputSpec{DType::f32, x.size()}};
  node.inputs = {draw.tensor(std::move(x), -1, 1), cast(draw.tensor({n, k}, -1, 1), random_dtype(choices)),
                 std::nullopt};
  if (choices.chance(50)) node.inputs[2] = draw.tensor({n}, -1, 1);
  return node;
}

NodeCase random_moe(Choices& choices) {
  Draw draw(random_seed(choices));
  const std::int64_t tokens = choices.integer(0, 9);
  const std::int64_t hidden = random_extent(choices, 1);
  const std::int64_t intermediate = random_extent(choices, 1);
  const std::int64_t experts = choices.integer(1, 6);
  const DType dtype = random_dtype(choices);
  const bool apart = choices.chance(50);
  NodeCase node;
  node.domain = "sluice";
  node.op = "MoE";
  node.inputs = {draw.tensor({tokens, hidden}, -1, 1), draw.tensor({tokens, experts}, -2, 2),
                 cast(draw.tensor({experts, (apart ? 1 : 2) * intermediate, hidden}, -1, 1), dtype),
                 cast(draw.tensor({experts, hidden, intermediate}, -1, 1), dtype), std::nullopt};
  if (apart) node.inputs[4] = cast(draw.tensor({experts, intermediate, hidden}, -1, 1), random_dtype(choices));
  node.attributes = {{"k", choices.integer(1, experts)},
                     {"normalize", choices.integer(0, 1)},
                     {"activation", choices.one_of({"silu", "gelu_tanh"})}};
  node.outputs = {OutputSpec{DType::f32, 2}};
  return node;
}

NodeCase random_gated_rms_norm(Choices& choices) {
  Draw draw(random_seed(choices));
  const std::int64_t width = choices.integer(1, 40);
  const DType dtype = random_dtype(choices);
  Shape shape;
  for (std::int64_t axis = choices.integer(0, 2); axis > 0; --axis) shape.push_back(choices.integer(0, 6));
  shape.push_back(width * choices.integer(0, 4));
  NodeCase node;
  node.op = "GatedRMSNorm";
  node.inputs = {cast(draw.tensor(shape, -2, 2), dtype), cast(draw.tensor({width}, 0.5f, 1.5f), dtype),
                 cast(draw.tensor(shape, -4, 4), dtype)};
  node.attributes = {{"activation", choices.one_of({"silu", "swish", "sigmoid"})}, {"epsilon", 1e-6f}};
  node.outputs = {OutputSpec{dtype, shape.size()}};
  return node;
}

// Elements that no shape or dtype forbids: numbers far away, or ones that mean something special.
void corrupt_element(TestTensor& tensor, Choices& choices) {
  if (tensor.elements() == 0) return;
  const std::int64_t at = choices.integer(0, tensor.elements() - 1);
  if (tensor.dtype == DType::i32) {
    constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
    constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();
    std::int32_t& value = tensor.data<std::int32_t>()[at];
    value =
        choices.one_of<std::int32_t>({0, 1, -1, 2, 7, 64, 1000, kMax, kMin, kMax - 1, value == kMax ? 0 : value + 1});
    return;
  }
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const float value = choices.one_of({kInf, -kInf, kNan, 0.0f, -0.0f, 1e30f, -1e30f, 1e-42f, 88.0f, -104.0f});
  const TestTensor one = cast(f32_tensor({1}, {value}), is_float_weight(tensor.dtype) ? tensor.dtype : DType::f32);
  if (!is_float_weight(tensor.dtype)) return;
  std::copy(one.bytes.begin(), one.bytes.end(),
            tensor.bytes.begin() + at * static_cast<std::int64_t>(dtype_bytes(tensor.dtype)));
}

TestTensor random_tensor(Choices& choices) {
  Shape shape;
  for (std::int64_t axis = choices.integer(0, 4); axis > 0; --axis) shape.push_back(choices.integer(0, 6));
  const DType dtype = choices.one_of({DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64, DType::i8});
  TestTensor tensor = make_tensor(dtype, std::move(shape));
  for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(choices.integer(0, 255));
  return tensor;
}

// The same number of elements in another shape, or one more or less of them along an axis.
void reshape(TestTensor& tensor, Choices& choices) {
  if (tensor.shape.empty()) return;
  const auto axis = static_cast<std::size_t>(choices.integer(0, static_cast<std::int64_t>(tensor.shape.size()) - 1));
  if (choices.chance(50)) {
    std::swap(tensor.shape[axis], tensor.shape[tensor.shape.size() - 1 - axis]);
    return;
  }
  if (choices.chance(30)) {
    tensor.shape.insert(tensor.shape.begin() + static_cast<std::ptrdiff_t>(axis), 1);
    return;
  }
  tensor.shape[axis] = std::max<std::int64_t>(0, tensor.shape[axis] + choices.one_of<std::int64_t>({-2, -1, 1, 2}));
  tensor.bytes.resize(byte_count(tensor.shape, tensor.dtype).value());
}

void corrupt_input(NodeCase& node, Choices& choices) {
  std::vector<std::optional<TestTensor>>& inputs = node.inputs;
  inputs.resize(find_operator(node.domain, node.op)->inputs.size());
  std::optional<TestTensor>& input =
      inputs[static_cast<std::size_t>(choices.integer(0, static_cast<std::int64_t>(inputs.size()) - 1))];
  const std::int64_t what = choices.integer(0, 9);
  if (!input) {
    if (what < 5) input = random_tensor(choices);
  } else if (what == 0) {
    input.reset();
  } else if (what == 1) {
    input = random_tensor(choices);
  } else if (what == 2) {
    if (is_float_weight(input->dtype)) input = cast(*input, random_dtype(choices));
  } else if (what < 6) {
    reshape(*input, choices);
  } else {
    corrupt_element(*input, choices);
  }
}

void corrupt_attribute(NodeCase& node, Choices& choices) {
  const auto attributes = find_operator(node.domain, node.op)->attributes;
  if (attributes.empty()) return;
  const AttributeSpec& spec =
      attributes[static_cast<std::size_t>(choices.integer(0, static_cast<std::int64_t>(attributes.size()) - 1))];
  std::erase_if(node.attributes, [&](const Attribute& a) { return a.name == spec.name; });
  if (choices.chance(20)) return;
  AttributeValue value;
  const std::int64_t kind = choices.chance(80) ? static_cast<std::int64_t>(spec.kind) : choices.integer(0, 3);
  constexpr std::int64_t kBig = std::int64_t{1} << 40;
  if (kind == 0) value = choices.one_of<std::int64_t>({0, 1, 2, 3, 4, 8, -1, 9, kBig, -kBig});
  if (kind == 1) value = choices.one_of({0.0f, 1.0f, -1.0f, 1e30f, 1e-30f, std::numeric_limits<float>::infinity()});
  if (kind == 2)
    value = std::string(choices.one_of({"", "none", "sigmoid", "linear", "gated", "silu", "LATENT", "qwen"}));
  if (kind == 3) value = std::vector<std::int64_t>{1, 2};
  node.attributes.push_back({std::string(spec.name), value});
}

}  // namespace

NodeCase random_node(Choices& choices) {
  switch (choices.integer(0, 6)) {
    case 0:
      return random_gated_delta_net(choices);
    case 1:
      return random_varlen_linear_attention(choices);
    case 2:
      return random_conv(choices);
    case 3:
      return random_paged(choices);
    case 4:
      return random_linear(choices);
    case 5:
      return random_gated_rms_norm(choices);
    default:
      return random_moe(choices);
  }
}

void corrupt(NodeCase& node, Choices& choices) {
  for (std::int64_t i = choices.integer(1, 3); i > 0; --i) {
    if (choices.chance(75)) {
      corrupt_input(node, choices);
    } else {
      corrupt_attribute(node, choices);
    }
  }
}

}  // namespace sluice::ops

#include "tests/support/released_vectors.h"

#include "base/error.h"
#include "base/json.h"

namespace sluice::ops {
namespace {

Shape shape_of(const Json& tensor) {
  Shape shape;
  for (const Json& extent : tensor.at("dims", "tensor").as_array("dims")) shape.push_back(extent.as_int("dims"));
  return shape;
}

TestTensor tensor_of(const Json& json, std::string_view type) {
  const Json::Array& data = json.at("data", "tensor").as_array("data");
  if (type == "float32") {
    std::vector<float> values;
    for (const Json& value : data) values.push_back(static_cast<float>(value.as_number("data")));
    return f32_tensor(shape_of(json), values);
  }
  if (type == "int32") {
    std::vector<std::int32_t> values;
    for (const Json& value : data) values.push_back(static_cast<std::int32_t>(value.as_int("data")));
    return i32_tensor(shape_of(json), values);
  }
  TestTensor tensor = make_tensor(DType::i64, shape_of(json));
  for (std::size_t i = 0; i < data.size(); ++i) tensor.data<std::int64_t>()[i] = data[i].as_int("data");
  return tensor;
}

AttributeValue attribute_of(const Json& json) {
  if (const Json* integer = json.find("i")) return integer->as_int("attribute");
  if (const Json* number = json.find("f")) return static_cast<float>(number->as_number("attribute"));
  if (const Json* text = json.find("s")) return text->as_string("attribute");
  std::vector<std::int64_t> values;
  for (const Json& value : json.at("ints", "attribute").as_array("ints")) values.push_back(value.as_int("ints"));
  return values;
}

ReleasedVector vector_of(const Json& json) {
  ReleasedVector result;
  result.name = json.at("name", "case").as_string("name");
  result.node.op = json.at("op", "case").as_string("op");
  for (const auto& [name, value] : json.at("attributes", "case").as_object("attributes")) {
    result.node.attributes.push_back({name, attribute_of(value)});
  }
  for (const Json& input : json.at("inputs", "case").as_array("inputs")) {
    if (input.find("dims") == nullptr) {
      result.node.inputs.emplace_back();
    } else {
      result.node.inputs.push_back(tensor_of(input, input.at("type", "input").as_string("type")));
    }
  }
  for (const auto& [name, value] : json.at("outputs", "case").as_object("outputs")) {
    result.outputs.push_back(tensor_of(value, "float32"));
    result.node.outputs.push_back(OutputSpec{DType::f32, result.outputs.back().shape.size()});
  }
  return result;
}

// [B, S, heads * dim] as [B * S, heads, dim].
TestTensor packed(TestTensor tensor, std::int64_t heads) {
  tensor.shape = {tensor.shape[0] * tensor.shape[1], heads, tensor.shape[2] / heads};
  return tensor;
}

// [B, Hv, dk, dv] as [B, Hv, dv, dk].
TestTensor transposed(const TestTensor& state) {
  const std::int64_t rows = state.shape[2];
  const std::int64_t columns = state.shape[3];
  TestTensor result = make_tensor(DType::f32, {state.shape[0], state.shape[1], columns, rows});
  const std::vector<float> from = to_floats(state);
  float* to = result.data<float>();
  for (std::int64_t head = 0; head < state.shape[0] * state.shape[1]; ++head) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) {
        to[(head * columns + c) * rows + r] = from[static_cast<std::size_t>((head * rows + r) * columns + c)];
      }
    }
  }
  return result;
}

LinearAttentionVector packed_vector(const ReleasedVector& vector) {
  LinearAttentionVector result;
  result.name = vector.name;
  for (const Attribute& attribute : vector.node.attributes) {
    if (attribute.name == "q_num_heads") result.q_heads = std::get<std::int64_t>(attribute.value);
    if (attribute.name == "kv_num_heads") result.v_heads = std::get<std::int64_t>(attribute.value);
    if (attribute.name == "update_rule") result.rule = std::get<std::string>(attribute.value);
    if (attribute.name == "scale") result.scale = std::get<float>(attribute.value);
  }
  const auto& inputs = vector.node.inputs;
  const std::int64_t batch = inputs[0]->shape[0];
  const std::int64_t length = inputs[0]->shape[1];
  const std::int64_t k_dim = inputs[0]->shape[2] / result.q_heads;
  result.k_heads = inputs[1]->shape[2] / k_dim;
  result.query = packed(*inputs[0], result.q_heads);
  result.key = packed(*inputs[1], result.k_heads);
  result.value = packed(*inputs[2], result.v_heads);
  std::vector<std::int32_t> offsets;
  for (std::int64_t b = 0; b <= batch; ++b) offsets.push_back(static_cast<std::int32_t>(b * length));
  result.offsets = i32_tensor({batch + 1}, offsets);
  result.state = inputs[3] ? transposed(*inputs[3])
                           : make_tensor(DType::f32, {batch, result.v_heads, result.value.shape[2], k_dim});
  if (inputs[4]) {
    result.decay = packed(*inputs[4], result.v_heads);
    if (result.decay->shape[2] == 1) result.decay->shape.pop_back();
  }
  if (inputs[5]) {
    result.beta_broadcast = inputs[5]->shape[2] != result.v_heads;
    result.beta = *inputs[5];
    result.beta->shape = {batch * length, inputs[5]->shape[2]};
  }
  result.output = packed(vector.outputs[0], std::max(result.q_heads, result.v_heads));
  result.final_state = transposed(vector.outputs[1]);
  return result;
}

}  // namespace

std::vector<ReleasedVector> released_vectors(std::string_view op) {
  std::vector<ReleasedVector> result;
  const Json file = read_json(SLUICE_SOURCE_DIR "/tests/data/ort_vectors.json");
  for (const Json& json : file.as_array("ort_vectors.json")) {
    if (json.at("op", "case").as_string("op") == op) result.push_back(vector_of(json));
  }
  if (result.empty()) fail("ort_vectors.json has no case of {}", op);
  return result;
}

std::vector<LinearAttentionVector> linear_attention_vectors() {
  std::vector<LinearAttentionVector> result;
  for (const ReleasedVector& vector : released_vectors("LinearAttention")) result.push_back(packed_vector(vector));
  return result;
}

}  // namespace sluice::ops

#include "graph/context.h"

#include <fmt/format.h>

#include <utility>

#include "opset/operators.h"

namespace sluice {

std::string layer_weight(std::int64_t layer, std::string_view name) { return fmt::format("layers.{}.{}", layer, name); }

Value DecoderContext::weight(const std::string& canonical, Shape shape, DType dtype,
                             std::vector<Transform> transforms) {
  std::string name = canonical;
  for (const Transform transform : transforms) name += fmt::format(".{}", name_of(transform));
  if (const auto known = weights_.find(name); known != weights_.end()) return known->second;
  const Value value =
      g.graph().add_initializer(name, dtype, std::move(shape), WeightRecipe{{canonical}, std::move(transforms)});
  weights_.emplace(std::move(name), value);
  return value;
}

Value DecoderContext::stored_weight(const std::string& canonical, Shape shape, std::vector<Transform> transforms) {
  return weight(canonical, std::move(shape), plan.stored(source_dtype_(canonical)), std::move(transforms));
}

Value DecoderContext::matrix(const std::string& canonical, Shape shape, std::vector<Transform> transforms) {
  const Value stored = stored_weight(canonical, std::move(shape), std::move(transforms));
  const auto whole = g.scope("weights");
  return g.cast(canonical, stored, plan.activation);
}

Value DecoderContext::vector(const std::string& canonical, Shape shape) {
  return weight(canonical, std::move(shape), plan.activation, {});
}

Value DecoderContext::vector_f32(const std::string& canonical, Shape shape, std::vector<Transform> transforms) {
  return weight(canonical, std::move(shape), DType::f32, std::move(transforms));
}

Value DecoderContext::linear(std::string_view label, Value x, const std::string& canonical, std::int64_t rows,
                             const std::string& bias_name) {
  const Shape shape{rows, g.shape(x).back().value};
  const Value bias = bias_name.empty() ? Value{} : vector(bias_name, {rows});
  if (plan.linear == LinearForm::linear) {
    return g.emit(kSluiceLinear, label, {x, stored_weight(canonical, shape), bias});
  }
  return g.emit(kGemm, label, {x, matrix(canonical, shape), bias}, {{"transB", std::int64_t{1}}});
}

Value DecoderContext::to_rows(std::string_view label, Value x) {
  return dense() ? g.emit(kReshape, label, {x, in.batch_shape}) : x;
}

Value DecoderContext::to_tokens(std::string_view label, Value x) {
  return dense() ? g.reshape(label, x, {-1, g.shape(x).back().value}) : x;
}

}  // namespace sluice

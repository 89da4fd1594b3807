// The ai.onnx operators our graphs use, at opset 23. RMSNormalization is what fixes the opset: the runtime computes it
// with the kernel of its older SimplifiedLayerNormalization, bit for bit, and ONNX's own checker knows it.
#include <algorithm>

#include "base/error.h"
#include "opset/operators.h"
#include "opset/shape_context.h"
#include "opset/type_sets.h"

namespace sluice {
namespace {

std::size_t axis_of(std::int64_t axis, std::size_t rank) {
  const auto signed_rank = static_cast<std::int64_t>(rank);
  if (axis < -signed_rank || axis >= signed_rank) fail("axis {} does not exist in {} axes", axis, rank);
  return static_cast<std::size_t>(axis < 0 ? axis + signed_rank : axis);
}

Extents required_contents(const ShapeContext& context, std::size_t index) {
  const auto contents = context.input_contents(index);
  if (!contents) fail("input {} is not known before run time", index);
  return *contents;
}

void infer_elementwise(ShapeContext& context) {
  const Extents& a = context.input_shape(0);
  const Extents& b = context.input_shape(1);
  const Extents& longer = a.size() >= b.size() ? a : b;
  const Extents& shorter = a.size() >= b.size() ? b : a;
  Extents output = longer;
  for (std::size_t i = 0; i < shorter.size(); ++i) {
    Extent& out = output[output.size() - 1 - i];
    const Extent& other = shorter[shorter.size() - 1 - i];
    if (other == extent(1)) continue;
    if (out == extent(1)) {
      out = other;
    } else if (!may_equal(out, other)) {
      fail("inputs 0 and 1 have shapes {} and {}, which do not broadcast", to_string(a), to_string(b));
    }
  }
  context.set_output_shape(0, output);
}

void infer_concat(ShapeContext& context) {
  Extents output = context.input_shape(0);
  const std::size_t axis = axis_of(context.integer("axis"), output.size());
  std::optional<Extents> contents = context.input_contents(0);
  for (std::size_t i = 1; i < context.input_count(); ++i) {
    const Extents& shape = require_rank(context, i, output.size());
    output[axis] = add(output[axis], shape[axis]);
    const auto more = context.input_contents(i);
    if (contents && more) contents->insert(contents->end(), more->begin(), more->end());
    if (!more) contents.reset();
  }
  context.set_output_shape(0, output);
  if (contents && output.size() == 1) context.set_output_contents(0, *contents);
}

void infer_gather(ShapeContext& context) {
  const Extents& data = context.input_shape(0);
  const Extents& indices = context.input_shape(1);
  const auto axis = static_cast<std::ptrdiff_t>(axis_of(context.integer("axis"), data.size()));
  Extents output(data.begin(), data.begin() + axis);
  output.insert(output.end(), indices.begin(), indices.end());
  output.insert(output.end(), data.begin() + axis + 1, data.end());
  context.set_output_shape(0, output);
}

void infer_gemm(ShapeContext& context) {
  const Extents& a = require_rank(context, 0, 2);
  const Extents& b = require_rank(context, 1, 2);
  const bool trans_a = context.integer("transA") != 0;
  const bool trans_b = context.integer("transB") != 0;
  if (!may_equal(a[trans_a ? 0 : 1], b[trans_b ? 1 : 0])) {
    fail("inputs 0 and 1 have shapes {} and {}: inner extents differ", to_string(a), to_string(b));
  }
  const Extents output{a[trans_a ? 1 : 0], b[trans_b ? 0 : 1]};
  require_shape(context, 2, {output[1]});
  context.set_output_shape(0, output);
}

void infer_reduce_sum(ShapeContext& context) {
  const Extents& data = context.input_shape(0);
  std::vector<bool> reduced(data.size());
  for (const Extent& axis : required_contents(context, 1)) reduced[axis_of(axis.value, data.size())] = true;
  Extents output;
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (!reduced[i]) output.push_back(data[i]);
    if (reduced[i] && context.integer("keepdims") != 0) output.push_back(extent(1));
  }
  context.set_output_shape(0, output);
}

// In the contents of a shape input a wildcard is the number -1 with no symbol, and 0 copies the input's extent.
void infer_reshape(ShapeContext& context) {
  const Extents& data = context.input_shape(0);
  Extents target = required_contents(context, 1);
  if (context.integer("allowzero") != 0) fail("allowzero is not described here");
  Extent known = extent(1);
  std::optional<std::size_t> wildcard;
  for (std::size_t i = 0; i < target.size(); ++i) {
    if (target[i] == extent(0)) target[i] = data.at(i);
    const bool is_wildcard = target[i].value < 0 && target[i].symbol.empty();
    if (is_wildcard) {
      wildcard = i;
    } else {
      known = multiply(known, target[i]);
    }
  }
  const Extent total = product(data);
  if (wildcard) {
    const auto rest = divide(total, known);
    if (!rest) fail("input 0 has shape {}: it does not reshape to the extents asked for", to_string(data));
    target[*wildcard] = *rest;
  } else if (!may_equal(total, known)) {
    fail("input 0 has shape {}: it does not reshape to {}", to_string(data), to_string(target));
  }
  context.set_output_shape(0, target);
}

void infer_rms_normalization(ShapeContext& context) {
  const Extents& x = context.input_shape(0);
  if (axis_of(context.integer("axis"), x.size()) + 1 != x.size()) fail("only the last axis is described here");
  require_shape(context, 1, {x.back()});
  context.set_output_shape(0, x);
}

void infer_shape(ShapeContext& context) {
  const Extents& data = context.input_shape(0);
  const auto rank = static_cast<std::int64_t>(data.size());
  std::int64_t start = context.integer("start");
  std::int64_t end = context.has_attribute("end") ? context.integer("end") : rank;
  start = std::clamp(start < 0 ? start + rank : start, std::int64_t{0}, rank);
  end = std::clamp(end < 0 ? end + rank : end, start, rank);
  context.set_output_shape(0, {extent(end - start)});
  context.set_output_contents(0, {data.begin() + start, data.begin() + end});
}

void infer_split(ShapeContext& context) {
  const Extents& input = context.input_shape(0);
  const std::size_t axis = axis_of(context.integer("axis"), input.size());
  const Extents sizes = required_contents(context, 1);
  if (sizes.size() != context.output_count()) {
    fail("input 1 names {} parts, {} outputs are listed", sizes.size(), context.output_count());
  }
  Extent total = extent(0);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    Extents part = input;
    part[axis] = sizes[i];
    context.set_output_shape(i, part);
    total = add(total, sizes[i]);
  }
  if (!may_equal(total, input[axis])) {
    fail("input 0 has shape {}: the parts of axis {} sum to {}", to_string(input), axis, to_string(total));
  }
}

void infer_transpose(ShapeContext& context) {
  const Extents& data = context.input_shape(0);
  const std::vector<std::int64_t> order = context.integers("perm");
  if (order.size() != data.size()) fail("perm has {} axes, input 0 has {}", order.size(), data.size());
  Extents output;
  for (const std::int64_t axis : order) output.push_back(data[axis_of(axis, data.size())]);
  context.set_output_shape(0, output);
}

constexpr TypeVariable kNumberTypes[] = {{"T", kNumbers}};
constexpr TypeVariable kFloatTypes[] = {{"T", kFloats}};
constexpr TypeVariable kAnyTypes[] = {{"T", kAnything}};
constexpr TypeVariable kAnyWithShape[] = {{"T", kAnything}, {"I64", kI64}};

constexpr PortSpec kBinaryInputs[] = {{"A", "T"}, {"B", "T"}};
constexpr PortSpec kBinaryOutputs[] = {{"C", "T"}};
constexpr PortSpec kUnaryInputs[] = {{"X", "T"}};
constexpr PortSpec kUnaryOutputs[] = {{"Y", "T"}};

constexpr AttributeSpec kCastAttributes[] = {int_attribute("saturate", 1),
                                             required_attribute("to", AttributeKind::integer)};
constexpr TypeVariable kCastTypes[] = {{"T1", kAnything}, {"T2", kAnything}};
constexpr PortSpec kCastInputs[] = {{"input", "T1"}};
constexpr PortSpec kCastOutputs[] = {{"output", "T2"}};

constexpr AttributeSpec kConcatAttributes[] = {required_attribute("axis", AttributeKind::integer)};
constexpr PortSpec kConcatInputs[] = {{"inputs", "T", Presence::variadic}};
constexpr PortSpec kConcatOutputs[] = {{"concat_result", "T"}};

constexpr AttributeSpec kGatherAttributes[] = {int_attribute("axis", 0)};
constexpr TypeVariable kGatherTypes[] = {{"T", kAnything}, {"Tind", kIndices}};
constexpr PortSpec kGatherInputs[] = {{"data", "T"}, {"indices", "Tind"}};
constexpr PortSpec kGatherOutputs[] = {{"output", "T"}};

constexpr AttributeSpec kGeluAttributes[] = {text_attribute("approximate", "none")};

constexpr AttributeSpec kGemmAttributes[] = {float_attribute("alpha", 1.0f), float_attribute("beta", 1.0f),
                                             int_attribute("transA", 0), int_attribute("transB", 0)};
constexpr PortSpec kGemmInputs[] = {{"A", "T"}, {"B", "T"}, {"C", "T", Presence::optional}};

constexpr AttributeSpec kReduceSumAttributes[] = {int_attribute("keepdims", 1),
                                                  int_attribute("noop_with_empty_axes", 0)};
constexpr TypeVariable kReduceSumTypes[] = {{"T", kNumbers}, {"I64", kI64}};
constexpr PortSpec kReduceSumInputs[] = {{"data", "T"}, {"axes", "I64", Presence::optional}};
constexpr PortSpec kReduceSumOutputs[] = {{"reduced", "T"}};

constexpr AttributeSpec kReshapeAttributes[] = {int_attribute("allowzero", 0)};
constexpr PortSpec kReshapeInputs[] = {{"data", "T"}, {"shape", "I64"}};
constexpr PortSpec kReshapeOutputs[] = {{"reshaped", "T"}};

constexpr AttributeSpec kRMSNormalizationAttributes[] = {int_attribute("axis", -1), float_attribute("epsilon", 1e-5f),
                                                         int_attribute("stash_type", 1)};
constexpr TypeVariable kRMSNormalizationTypes[] = {{"T", kFloats}, {"V", kFloats}};
constexpr PortSpec kRMSNormalizationInputs[] = {{"X", "T"}, {"scale", "V"}};
constexpr PortSpec kRMSNormalizationOutputs[] = {{"Y", "V"}};

constexpr AttributeSpec kShapeAttributes[] = {int_attribute("start", 0),
                                              optional_attribute("end", AttributeKind::integer)};
constexpr TypeVariable kShapeTypes[] = {{"T", kAnything}, {"T1", kI64}};
constexpr PortSpec kShapeInputs[] = {{"data", "T"}};
constexpr PortSpec kShapeOutputs[] = {{"shape", "T1"}};

constexpr AttributeSpec kSplitAttributes[] = {int_attribute("axis", 0),
                                              optional_attribute("num_outputs", AttributeKind::integer)};
constexpr PortSpec kSplitInputs[] = {{"input", "T"}, {"split", "I64", Presence::optional}};
constexpr PortSpec kSplitOutputs[] = {{"outputs", "T", Presence::variadic}};

constexpr AttributeSpec kTransposeAttributes[] = {optional_attribute("perm", AttributeKind::integers)};
constexpr PortSpec kTransposeInputs[] = {{"data", "T"}};
constexpr PortSpec kTransposeOutputs[] = {{"transposed", "T"}};

constexpr OperatorSpec binary(std::string_view name) {
  return {.domain = kOnnxDomain,
          .name = name,
          .since_version = 14,
          .attributes = {},
          .types = kNumberTypes,
          .inputs = kBinaryInputs,
          .outputs = kBinaryOutputs,
          .infer = infer_elementwise};
}

constexpr OperatorSpec unary(std::string_view name, std::int64_t since, std::span<const AttributeSpec> attributes) {
  return {.domain = kOnnxDomain,
          .name = name,
          .since_version = since,
          .attributes = attributes,
          .types = kFloatTypes,
          .inputs = kUnaryInputs,
          .outputs = kUnaryOutputs,
          .infer = nullptr};
}

}  // namespace

constinit const OperatorSpec kAdd = binary("Add");
constinit const OperatorSpec kMul = binary("Mul");
constinit const OperatorSpec kSub = binary("Sub");
constinit const OperatorSpec kGelu = unary("Gelu", 20, kGeluAttributes);
constinit const OperatorSpec kRelu = unary("Relu", 14, {});
constinit const OperatorSpec kSigmoid = unary("Sigmoid", 13, {});

constinit const OperatorSpec kCast{.domain = kOnnxDomain,
                                   .name = "Cast",
                                   .since_version = 23,
                                   .attributes = kCastAttributes,
                                   .types = kCastTypes,
                                   .inputs = kCastInputs,
                                   .outputs = kCastOutputs};

constinit const OperatorSpec kConcat{.domain = kOnnxDomain,
                                     .name = "Concat",
                                     .since_version = 13,
                                     .attributes = kConcatAttributes,
                                     .types = kAnyTypes,
                                     .inputs = kConcatInputs,
                                     .outputs = kConcatOutputs,
                                     .infer = infer_concat};

constinit const OperatorSpec kGather{.domain = kOnnxDomain,
                                     .name = "Gather",
                                     .since_version = 13,
                                     .attributes = kGatherAttributes,
                                     .types = kGatherTypes,
                                     .inputs = kGatherInputs,
                                     .outputs = kGatherOutputs,
                                     .infer = infer_gather};

constinit const OperatorSpec kGemm{.domain = kOnnxDomain,
                                   .name = "Gemm",
                                   .since_version = 13,
                                   .attributes = kGemmAttributes,
                                   .types = kNumberTypes,
                                   .inputs = kGemmInputs,
                                   .outputs = kUnaryOutputs,
                                   .infer = infer_gemm};

constinit const OperatorSpec kReduceSum{.domain = kOnnxDomain,
                                        .name = "ReduceSum",
                                        .since_version = 13,
                                        .attributes = kReduceSumAttributes,
                                        .types = kReduceSumTypes,
                                        .inputs = kReduceSumInputs,
                                        .outputs = kReduceSumOutputs,
                                        .infer = infer_reduce_sum};

constinit const OperatorSpec kReshape{.domain = kOnnxDomain,
                                      .name = "Reshape",
                                      .since_version = 23,
                                      .attributes = kReshapeAttributes,
                                      .types = kAnyWithShape,
                                      .inputs = kReshapeInputs,
                                      .outputs = kReshapeOutputs,
                                      .infer = infer_reshape};

constinit const OperatorSpec kRMSNormalization{.domain = kOnnxDomain,
                                               .name = "RMSNormalization",
                                               .since_version = 23,
                                               .attributes = kRMSNormalizationAttributes,
                                               .types = kRMSNormalizationTypes,
                                               .inputs = kRMSNormalizationInputs,
                                               .outputs = kRMSNormalizationOutputs,
                                               .infer = infer_rms_normalization};

constinit const OperatorSpec kShape{.domain = kOnnxDomain,
                                    .name = "Shape",
                                    .since_version = 23,
                                    .attributes = kShapeAttributes,
                                    .types = kShapeTypes,
                                    .inputs = kShapeInputs,
                                    .outputs = kShapeOutputs,
                                    .infer = infer_shape};

constinit const OperatorSpec kSplit{.domain = kOnnxDomain,
                                    .name = "Split",
                                    .since_version = 18,
                                    .attributes = kSplitAttributes,
                                    .types = kAnyWithShape,
                                    .inputs = kSplitInputs,
                                    .outputs = kSplitOutputs,
                                    .infer = infer_split};

constinit const OperatorSpec kTranspose{.domain = kOnnxDomain,
                                        .name = "Transpose",
                                        .since_version = 23,
                                        .attributes = kTransposeAttributes,
                                        .types = kAnyTypes,
                                        .inputs = kTransposeInputs,
                                        .outputs = kTransposeOutputs,
                                        .infer = infer_transpose};

}  // namespace sluice

#include <algorithm>
#include <array>

#include "opset/operators.h"

namespace sluice {
namespace {

constexpr std::array kOperators{
    &kGatedDeltaNet,
    &kVarlenLinearAttention,
    &kLinearAttention,
    &kLinearAttentionGate,
    &kCausalConvWithState,
    &kVarlenCausalConvWithState,
    &kGroupQueryAttention,
    &kPagedAttention,
    &kRotaryEmbedding,
    &kMRotaryEmbedding,
    &kSkipSimplifiedLayerNormalization,
    &kGatedRMSNorm,
    &kGatedAdd,
    &kMoE,
    &kSluiceLinear,
    &kSluiceMoE,
    &kAdd,
    &kCast,
    &kConcat,
    &kGather,
    &kGelu,
    &kGemm,
    &kMul,
    &kReduceSum,
    &kRelu,
    &kReshape,
    &kRMSNormalization,
    &kShape,
    &kSigmoid,
    &kSplit,
    &kSub,
    &kTranspose,
};

}  // namespace

const AttributeSpec* OperatorSpec::attribute(std::string_view attribute_name) const {
  const auto found = std::ranges::find(attributes, attribute_name, &AttributeSpec::name);
  return found == attributes.end() ? nullptr : &*found;
}

TypeSet OperatorSpec::allowed(std::string_view type_variable) const {
  const auto found = std::ranges::find(types, type_variable, &TypeVariable::name);
  return found == types.end() ? TypeSet{} : found->allowed;
}

std::span<const OperatorSpec* const> all_operators() { return kOperators; }

const OperatorSpec* find_operator(std::string_view domain, std::string_view name) {
  const auto found = std::ranges::find_if(
      kOperators, [&](const OperatorSpec* spec) { return spec->domain == domain && spec->name == name; });
  return found == kOperators.end() ? nullptr : *found;
}

}  // namespace sluice

// The operators, by group. find_operator() looks them up by name.
#pragma once

#include "opset/operator.h"

namespace sluice {

// recurrence.cc
extern const OperatorSpec kGatedDeltaNet;
extern const OperatorSpec kVarlenLinearAttention;  // ours: no released runtime has it
extern const OperatorSpec kLinearAttention;
extern const OperatorSpec kLinearAttentionGate;
// convolution.cc
extern const OperatorSpec kCausalConvWithState;
extern const OperatorSpec kVarlenCausalConvWithState;
// attention.cc
extern const OperatorSpec kGroupQueryAttention;
extern const OperatorSpec kPagedAttention;
extern const OperatorSpec kRotaryEmbedding;
extern const OperatorSpec kMRotaryEmbedding;
// rows.cc
extern const OperatorSpec kSkipSimplifiedLayerNormalization;
extern const OperatorSpec kGatedRMSNorm;
extern const OperatorSpec kGatedAdd;
extern const OperatorSpec kMoE;
// sluice_domain.cc
extern const OperatorSpec kSluiceLinear;
extern const OperatorSpec kSluiceMoE;
// standard.cc: ai.onnx
extern const OperatorSpec kAdd;
extern const OperatorSpec kCast;
extern const OperatorSpec kConcat;
extern const OperatorSpec kGather;
extern const OperatorSpec kGelu;
extern const OperatorSpec kGemm;
extern const OperatorSpec kMul;
extern const OperatorSpec kReduceSum;
extern const OperatorSpec kRelu;
extern const OperatorSpec kReshape;
extern const OperatorSpec kRMSNormalization;
extern const OperatorSpec kShape;
extern const OperatorSpec kSigmoid;
extern const OperatorSpec kSplit;
extern const OperatorSpec kSub;
extern const OperatorSpec kTranspose;

}  // namespace sluice

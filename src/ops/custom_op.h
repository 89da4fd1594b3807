// From an adapter class to the table of callbacks that ONNX Runtime calls an operator.
//
// An adapter is a class with
//   static constexpr std::string_view kDomain, kName       its row in opset/
//   static constexpr std::array<InPlace, n> kInPlace       outputs that may share their input's memory inside a graph
//   static constexpr int kTypedInput                       see CustomOp::typed_input
//   Adapter(const Node&, Level)                            reads and checks the attributes; throws Error
//   void compute(Context&) const                           one run; throws Error; may run on several threads at once
// No exception crosses into ONNX Runtime: each becomes a status that names the node.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/level.h"
#include "ops/context.h"
#include "ops/inference.h"
#include "ops/node.h"
#include "ops/ort.h"
#include "opset/operator.h"

namespace sluice::ops {

inline constexpr int kNoTypedInput = -1;

// ONNX Runtime keeps a pointer to this for as long as a session that registered it lives.
//
// Ports have no declared element type, so that wrong ones reach the adapter, whose errors name input, expected and
// found. ONNX Runtime then takes the type of an optional output from the last input the node lists, unless it is fixed:
// an operator with an optional output of a type variable is therefore registered once for each type of one input,
// `typed_input`, and of the optional outputs that share its variable.
struct CustomOp : OrtCustomOp {
  const OrtApi* api = nullptr;
  Level level = Level::scalar;
  const OperatorSpec* spec = nullptr;
  int typed_input = kNoTypedInput;
  DType input_type = DType::f32;
  std::unique_ptr<UnknownExtents> unknown_extents;
};

// The status for the exception being handled: what a user caused is an invalid argument, anything else a failure.
OrtStatus* status_of_current_exception(const OrtApi& api, std::string_view where) noexcept;

namespace detail {

// Everything that does not depend on the adapter's type. The operator must be in opset/.
CustomOp describe(const OrtApi& api, Level level, std::string_view domain, std::string_view name);

// "GatedDeltaNet node 'layers.0.gdn': "
std::string node_label(const OperatorSpec& spec, const Node& node);

template <typename Adapter>
struct Kernel {
  const OrtApi& api;
  const OperatorSpec& spec;
  std::string where;
  Adapter adapter;
};

template <typename Adapter>
OrtStatus* ORT_API_CALL create_kernel(const OrtCustomOp* op, const OrtApi*, const OrtKernelInfo* info,
                                      void** kernel) noexcept {
  const auto& custom = static_cast<const CustomOp&>(*op);
  std::string where;
  try {
    const Node node(*custom.spec, *custom.api, *info);
    where = node_label(*custom.spec, node);
    *kernel = new Kernel<Adapter>{*custom.api, *custom.spec, where, Adapter(node, custom.level)};
    return nullptr;
  } catch (...) {
    return status_of_current_exception(*custom.api, where);
  }
}

template <typename Adapter>
OrtStatus* ORT_API_CALL compute_kernel(void* kernel, OrtKernelContext* ort_context) noexcept {
  const auto& self = *static_cast<const Kernel<Adapter>*>(kernel);
  try {
    Context context(self.api, *ort_context, self.spec, Adapter::kInPlace);
    self.adapter.compute(context);
    return nullptr;
  } catch (...) {
    return status_of_current_exception(self.api, self.where);
  }
}

template <typename Adapter>
void ORT_API_CALL destroy_kernel(void* kernel) noexcept {
  delete static_cast<Kernel<Adapter>*>(kernel);
}

template <typename Adapter>
std::size_t ORT_API_CALL in_place(int** inputs, int** outputs) noexcept {
  constexpr std::size_t count = Adapter::kInPlace.size();
  *inputs = new int[count];
  *outputs = new int[count];
  for (std::size_t i = 0; i < count; ++i) {
    (*inputs)[i] = Adapter::kInPlace[i].input;
    (*outputs)[i] = Adapter::kInPlace[i].output;
  }
  return count;
}

inline void ORT_API_CALL release_in_place(int* inputs, int* outputs) noexcept {
  delete[] inputs;
  delete[] outputs;
}

}  // namespace detail

// Appends the operator's registrations: one, or one for each type of its typed input.
template <typename Adapter>
void add_custom_op(const OrtApi& api, Level level, std::vector<CustomOp>& ops) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    CustomOp op = detail::describe(api, level, Adapter::kDomain, Adapter::kName);
    op.typed_input = Adapter::kTypedInput;
    op.input_type = type;
    op.CreateKernelV2 = detail::create_kernel<Adapter>;
    op.KernelComputeV2 = detail::compute_kernel<Adapter>;
    op.KernelDestroy = detail::destroy_kernel<Adapter>;
    if constexpr (!Adapter::kInPlace.empty()) {
      op.GetMayInplace = detail::in_place<Adapter>;
      op.ReleaseMayInplace = detail::release_in_place;
    }
    ops.push_back(std::move(op));
    if (Adapter::kTypedInput == kNoTypedInput) return;
  }
}

}  // namespace sluice::ops

// sluice.Linear: y = x W^T + b, the weight read in place from the mapped package.
#include "ops/adapters.h"
#include "ops/custom_op.h"
#include "ops/validate_linear.h"

namespace sluice::ops {
namespace {

class Linear {
 public:
  static constexpr std::string_view kDomain = kSluiceDomain;
  static constexpr std::string_view kName = "Linear";
  static constexpr std::array<InPlace, 0> kInPlace{};
  static constexpr int kTypedInput = kNoTypedInput;

  // A constant weight is checked when the model is loaded, and looked up once instead of in every run.
  Linear(const Node& node, Level level) : level_(level) {
    if (const auto weight = node.constant_input(1)) weight_ = validate_linear_weight(*weight);
  }

  void compute(Context& context) const {
    const WeightView weight = weight_ ? *weight_ : validate_linear_weight(context.input_in_place(1));
    LinearCall call = validate_linear(context.input(0), weight, context.input(2));
    call.args.y = static_cast<float*>(context.output(0, DType::f32, call.output));
    const Scratch scratch = context.scratch(linear_scratch_bytes(level_, call.args));
    SessionExecutor executor = context.executor();
    linear(level_, call.args, scratch.bytes(), executor);
  }

 private:
  std::optional<WeightView> weight_;
  Level level_;
};

}  // namespace

void add_linear(const OrtApi& api, Level level, std::vector<CustomOp>& ops) { add_custom_op<Linear>(api, level, ops); }

}  // namespace sluice::ops

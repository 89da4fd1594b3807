// sluice.MoE: a sparse mixture of gated experts, their weights read in place from the mapped package.
#include "ops/adapters.h"
#include "ops/custom_op.h"
#include "ops/validate_linear.h"

namespace sluice::ops {
namespace {

class Moe {
 public:
  static constexpr std::string_view kDomain = kSluiceDomain;
  static constexpr std::string_view kName = "MoE";
  static constexpr std::array<InPlace, 0> kInPlace{};
  static constexpr int kTypedInput = kNoTypedInput;

  Moe(const Node& node, Level level) : attributes_(read_moe(node)), level_(level) {
    const auto gate_up = node.constant_input(2);
    const auto down = node.constant_input(3);
    const auto up = node.constant_input(4);
    const bool complete = gate_up && down && (up || !node.has_input(4));
    if (complete) weights_ = validate_moe_weights(attributes_, *gate_up, *down, up.value_or(Argument{}));
  }

  void compute(Context& context) const {
    const MoeWeights weights = weights_ ? *weights_
                                        : validate_moe_weights(attributes_, context.input_in_place(2),
                                                               context.input_in_place(3), context.input_in_place(4));
    const Argument x = context.input(0);
    MoeArgs args = validate_moe(attributes_, weights, x, context.input(1));
    args.y = static_cast<float*>(context.output(0, DType::f32, x.shape));
    const Scratch scratch = context.scratch(moe_scratch_bytes(level_, args));
    SessionExecutor executor = context.executor();
    moe(level_, args, scratch.bytes(), executor);
  }

 private:
  MoeAttributes attributes_;
  std::optional<MoeWeights> weights_;
  Level level_;
};

}  // namespace

void add_moe(const OrtApi& api, Level level, std::vector<CustomOp>& ops) { add_custom_op<Moe>(api, level, ops); }

}  // namespace sluice::ops

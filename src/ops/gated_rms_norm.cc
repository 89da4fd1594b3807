// com.microsoft GatedRMSNorm: the runtime has it, at a hundred times the time.
#include "ops/adapters.h"
#include "ops/custom_op.h"
#include "ops/validate_gated_rms_norm.h"

namespace sluice::ops {
namespace {

class GatedRmsNorm {
 public:
  static constexpr std::string_view kDomain = kMicrosoftDomain;
  static constexpr std::string_view kName = "GatedRMSNorm";
  static constexpr std::array<InPlace, 2> kInPlace{{{0, 0}, {2, 0}}};  // X or gate -> Y
  static constexpr int kTypedInput = kNoTypedInput;

  GatedRmsNorm(const Node& node, Level level) : attributes_(read_gated_rms_norm(node)), level_(level) {}

  void compute(Context& context) const {
    const Argument x = context.input(0);
    GatedRmsNormArgs args = validate_gated_rms_norm(attributes_, x, context.input(1), context.input(2));
    args.output = context.output(0, x.dtype, x.shape);
    SessionExecutor executor = context.executor();
    gated_rms_norm(level_, args, executor);
  }

 private:
  GatedRmsNormAttributes attributes_;
  Level level_;
};

}  // namespace

void add_gated_rms_norm(const OrtApi& api, Level level, std::vector<CustomOp>& ops) {
  add_custom_op<GatedRmsNorm>(api, level, ops);
}

}  // namespace sluice::ops

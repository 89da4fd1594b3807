// com.microsoft VarlenCausalConvWithState.
#include "ops/adapters.h"
#include "ops/custom_op.h"
#include "ops/validate_varlen_causal_conv.h"

namespace sluice::ops {
namespace {

class VarlenCausalConv {
 public:
  static constexpr std::string_view kDomain = kMicrosoftDomain;
  static constexpr std::string_view kName = "VarlenCausalConvWithState";
  static constexpr std::array<InPlace, 1> kInPlace{{{4, 1}}};  // initial_state -> final_state
  static constexpr int kTypedInput = 4;                        // initial_state

  VarlenCausalConv(const Node& node, Level level) : attributes_(read_varlen_causal_conv(node)), level_(level) {}

  void compute(Context& context) const {
    const VarlenCausalConvInputs inputs{
        .input = context.input(0),
        .weight = context.input(1),
        .cumulative_sequence_length = context.input(2),
        .bias = context.input(3),
        .initial_state = context.input(4),
        .capture_count = context.input(5),
        .kernel_delta = context.input(6),
        .previous_mask = context.input(7),
    };
    VarlenCausalConvCall call = validate_varlen_causal_conv(attributes_, inputs);
    call.args.output = context.output(0, call.args.type, call.output);
    call.args.final_state = context.output(1, call.args.type, call.state);
    call.args.capture = context.output(2, call.args.type, call.capture);
    const Scratch scratch = context.scratch(causal_conv_scratch_bytes(call.args.shape, call.args.type));
    SessionExecutor executor = context.executor();
    causal_conv(level_, call.args, scratch.bytes(), executor);
  }

 private:
  VarlenCausalConvAttributes attributes_;
  Level level_;
};

}  // namespace

void add_varlen_causal_conv(const OrtApi& api, Level level, std::vector<CustomOp>& ops) {
  add_custom_op<VarlenCausalConv>(api, level, ops);
}

}  // namespace sluice::ops

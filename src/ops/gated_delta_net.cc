// com.microsoft GatedDeltaNet.
#include "ops/adapters.h"
#include "ops/custom_op.h"
#include "ops/validate_gated_delta_net.h"

namespace sluice::ops {
namespace {

class GatedDeltaNet {
 public:
  static constexpr std::string_view kDomain = kMicrosoftDomain;
  static constexpr std::string_view kName = "GatedDeltaNet";
  static constexpr std::array<InPlace, 1> kInPlace{{{6, 1}}};  // initial_state -> final_state
  static constexpr int kTypedInput = kNoTypedInput;

  GatedDeltaNet(const Node& node, Level level) : attributes_(read_gated_delta_net(node)), level_(level) {}

  void compute(Context& context) const {
    const GatedDeltaNetInputs inputs{
        .query = context.input(0),
        .key = context.input(1),
        .value = context.input(2),
        .cu_seqlens = context.input(3),
        .decay = context.input(4),
        .beta = context.input(5),
        .initial_state = context.input(6),
        .a_log = context.input(7),
        .dt_bias = context.input(8),
        .capture_count = context.input(9),
        .state_update_active = context.input(10),
    };
    GatedDeltaNetCall call = validate_gated_delta_net(attributes_, inputs);
    call.args.output = context.output(0, call.args.dtype, call.output);
    call.args.final_state = static_cast<float*>(context.output(1, DType::f32, call.state));
    call.args.capsule = static_cast<float*>(context.output(2, DType::f32, call.capsule));
    const Scratch scratch = context.scratch(gated_delta_net_scratch_bytes(level_, call.args.shape));
    SessionExecutor executor = context.executor();
    gated_delta_net(level_, call.args, scratch.bytes(), executor);
  }

 private:
  GatedDeltaNetAttributes attributes_;
  Level level_;
};

}  // namespace

void add_gated_delta_net(const OrtApi& api, Level level, std::vector<CustomOp>& ops) {
  add_custom_op<GatedDeltaNet>(api, level, ops);
}

}  // namespace sluice::ops

// com.microsoft VarlenLinearAttention.
#include "ops/adapters.h"
#include "ops/custom_op.h"
#include "ops/validate_varlen_linear_attention.h"

namespace sluice::ops {
namespace {

class VarlenLinearAttention {
 public:
  static constexpr std::string_view kDomain = kMicrosoftDomain;
  static constexpr std::string_view kName = "VarlenLinearAttention";
  static constexpr std::array<InPlace, 1> kInPlace{{{4, 1}}};  // initial_state -> final_state
  static constexpr int kTypedInput = kNoTypedInput;

  VarlenLinearAttention(const Node& node, Level level)
      : attributes_(read_varlen_linear_attention(node)), level_(level) {}

  void compute(Context& context) const {
    const VarlenLinearAttentionInputs inputs{
        .query = context.input(0),
        .key = context.input(1),
        .value = context.input(2),
        .cumulative_sequence_length = context.input(3),
        .initial_state = context.input(4),
        .decay = context.input(5),
        .beta = context.input(6),
        .a_log = context.input(7),
        .dt_bias = context.input(8),
    };
    VarlenLinearAttentionCall call = validate_varlen_linear_attention(attributes_, inputs);
    call.args.output = context.output(0, call.args.dtype, call.output);
    call.args.final_state = static_cast<float*>(context.output(1, DType::f32, call.state));
    context.output(2, DType::f32, call.checkpoints);  // empty: max_checkpoints is 0
    const Scratch scratch = context.scratch(varlen_linear_attention_scratch_bytes(level_, call.args));
    SessionExecutor executor = context.executor();
    varlen_linear_attention(level_, call.args, scratch.bytes(), executor);
  }

 private:
  VarlenLinearAttentionAttributes attributes_;
  Level level_;
};

}  // namespace

void add_varlen_linear_attention(const OrtApi& api, Level level, std::vector<CustomOp>& ops) {
  add_custom_op<VarlenLinearAttention>(api, level, ops);
}

}  // namespace sluice::ops

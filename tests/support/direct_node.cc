#include "tests/support/direct_node.h"

#include <cstring>
#include <map>

#include "base/error.h"
#include "ops/validate_gated_delta_net.h"
#include "ops/validate_gated_rms_norm.h"
#include "ops/validate_linear.h"
#include "ops/validate_paged_attention.h"
#include "ops/validate_varlen_causal_conv.h"
#include "ops/validate_varlen_linear_attention.h"

namespace sluice::ops {
namespace {

class CaseAttributes final : public Attributes {
 public:
  explicit CaseAttributes(const NodeCase& node) : Attributes(*find_operator(node.domain, node.op)), node_(node) {}

 private:
  template <typename T>
  std::optional<T> find(const char* name) const {
    for (const Attribute& attribute : node_.attributes) {
      if (attribute.name != name) continue;
      if (const T* value = std::get_if<T>(&attribute.value)) return *value;
      fail("attribute {} has another type", name);
    }
    return std::nullopt;
  }
  std::optional<std::int64_t> find_integer(const char* name) const override { return find<std::int64_t>(name); }
  std::optional<float> find_number(const char* name) const override { return find<float>(name); }
  std::optional<std::string> find_text(const char* name) const override { return find<std::string>(name); }
  std::optional<std::vector<std::int64_t>> find_integers(const char* name) const override {
    return find<std::vector<std::int64_t>>(name);
  }

  const NodeCase& node_;
};

class DirectRun {
 public:
  DirectRun(const NodeCase& node, Level level, Executor& executor)
      : node_(node), attributes_(node), level_(level), executor_(executor) {}

  Outcome run() {
    static const std::map<std::string, void (DirectRun::*)(), std::less<>> kOperators{
        {"GatedDeltaNet", &DirectRun::gated_delta_net},
        {"VarlenLinearAttention", &DirectRun::varlen_linear_attention},
        {"VarlenCausalConvWithState", &DirectRun::causal_conv},
        {"PagedAttention", &DirectRun::paged_attention},
        {"GatedRMSNorm", &DirectRun::gated_rms_norm},
        {"Linear", &DirectRun::linear},
        {"MoE", &DirectRun::moe}};
    try {
      (this->*kOperators.at(node_.op))();
    } catch (const Error& error) {
      outcome_.outputs.clear();
      outcome_.error = error.what();
    }
    return std::move(outcome_);
  }

 private:
  Argument input(std::size_t index) const {
    const PortSpec& port = attributes_.spec().inputs[index];
    if (index < node_.inputs.size() && node_.inputs[index]) {
      return as_argument(*node_.inputs[index], static_cast<int>(index), port.name);
    }
    Argument absent;
    absent.index = static_cast<int>(index);
    absent.name = port.name;
    if (port.presence == Presence::required) fail("{} is missing", label(absent));
    return absent;
  }

  // Every output the node lists, in order; null for the others.
  void* output(std::size_t index, DType dtype, const Dims& shape) {
    if (index >= node_.outputs.size() || !node_.outputs[index]) return nullptr;
    outcome_.outputs.push_back(make_tensor(dtype, Shape(shape.span().begin(), shape.span().end())));
    outputs_.push_back(std::make_unique<std::byte[]>(outcome_.outputs.back().bytes.size()));
    return outputs_.back().get();
  }

  std::span<std::byte> scratch(std::size_t bytes) {
    scratch_ = std::make_unique<std::byte[]>(bytes);
    return {scratch_.get(), bytes};
  }

  void keep_outputs() {
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      std::vector<std::byte>& bytes = outcome_.outputs[i].bytes;
      if (!bytes.empty()) std::memcpy(bytes.data(), outputs_[i].get(), bytes.size());
    }
  }

  void gated_delta_net() {
    const GatedDeltaNetInputs in{input(0), input(1), input(2), input(3), input(4), input(5),
                                 input(6), input(7), input(8), input(9), input(10)};
    GatedDeltaNetCall call = validate_gated_delta_net(read_gated_delta_net(attributes_), in);
    call.args.output = output(0, call.args.dtype, call.output);
    call.args.final_state = static_cast<float*>(output(1, DType::f32, call.state));
    call.args.capsule = static_cast<float*>(output(2, DType::f32, call.capsule));
    sluice::gated_delta_net(level_, call.args, scratch(gated_delta_net_scratch_bytes(level_, call.args.shape)),
                            executor_);
    keep_outputs();
  }

  void varlen_linear_attention() {
    const VarlenLinearAttentionInputs in{input(0), input(1), input(2), input(3), input(4),
                                         input(5), input(6), input(7), input(8)};
    VarlenLinearAttentionCall call = validate_varlen_linear_attention(read_varlen_linear_attention(attributes_), in);
    call.args.output = output(0, call.args.dtype, call.output);
    call.args.final_state = static_cast<float*>(output(1, DType::f32, call.state));
    output(2, DType::f32, call.checkpoints);
    sluice::varlen_linear_attention(level_, call.args,
                                    scratch(varlen_linear_attention_scratch_bytes(level_, call.args)), executor_);
    keep_outputs();
  }

  void causal_conv() {
    const VarlenCausalConvInputs in{input(0), input(1), input(2), input(3), input(4), input(5), input(6), input(7)};
    VarlenCausalConvCall call = validate_varlen_causal_conv(read_varlen_causal_conv(attributes_), in);
    call.args.output = output(0, call.args.type, call.output);
    call.args.final_state = output(1, call.args.type, call.state);
    call.args.capture = output(2, call.args.type, call.capture);
    sluice::causal_conv(level_, call.args, scratch(causal_conv_scratch_bytes(call.args.shape, call.args.type)),
                        executor_);
    keep_outputs();
  }

  void paged_attention() {
    const PagedAttentionInputs in{input(0),  input(1),  input(2),  input(3),  input(4),  input(5),
                                  input(6),  input(7),  input(8),  input(9),  input(10), input(11),
                                  input(12), input(13), input(14), input(15), input(16)};
    PagedAttentionCall call = validate_paged_attention(read_paged_attention(attributes_), in);
    PagedAttentionArgs& args = call.args;
    args.output = output(0, args.type, call.output);
    args.key_cache = output(1, args.cache_type, call.cache);
    args.value_cache = output(2, args.cache_type, call.cache);
    args.key_cache_in = in.key_cache.data;
    args.value_cache_in = in.value_cache.data;
    sluice::paged_attention(level_, args, scratch(paged_attention_scratch_bytes(args)), executor_);
    keep_outputs();
  }

  void gated_rms_norm() {
    const Argument x = input(0);
    GatedRmsNormArgs args = validate_gated_rms_norm(read_gated_rms_norm(attributes_), x, input(1), input(2));
    args.output = output(0, args.type, x.shape);
    sluice::gated_rms_norm(level_, args, executor_);
    keep_outputs();
  }

  void linear() {
    LinearCall call = validate_linear(input(0), validate_linear_weight(input(1)), input(2));
    call.args.y = static_cast<float*>(output(0, DType::f32, call.output));
    sluice::linear(level_, call.args, scratch(linear_scratch_bytes(level_, call.args)), executor_);
    keep_outputs();
  }

  void moe() {
    const MoeAttributes attributes = read_moe(attributes_);
    const Argument x = input(0);
    MoeArgs args =
        validate_moe(attributes, validate_moe_weights(attributes, input(2), input(3), input(4)), x, input(1));
    args.y = static_cast<float*>(output(0, DType::f32, x.shape));
    sluice::moe(level_, args, scratch(moe_scratch_bytes(level_, args)), executor_);
    keep_outputs();
  }

  const NodeCase& node_;
  CaseAttributes attributes_;
  Level level_;
  Executor& executor_;
  Outcome outcome_;
  std::vector<std::unique_ptr<std::byte[]>> outputs_;
  std::unique_ptr<std::byte[]> scratch_;
};

}  // namespace

Outcome run_direct(const NodeCase& node, Level level, Executor& executor) {
  return DirectRun(node, level, executor).run();
}

}  // namespace sluice::ops

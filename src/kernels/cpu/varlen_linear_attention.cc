#include "kernels/cpu/varlen_linear_attention.h"

namespace sluice {
namespace {

GatedDeltaNetArgs as_gated_delta_net(const VarlenLinearAttentionArgs& a) {
  GatedDeltaNetArgs out;
  out.shape = {a.tokens, a.rows, a.q_heads, a.k_heads, a.v_heads, a.k_dim, a.v_dim, 0, a.per_key_decay};
  out.rule = a.rule;
  out.gate_activation = a.softplus_decay ? GateActivation::softplus : GateActivation::none;
  out.beta_activation = a.beta_activation;
  out.scale = a.scale;
  out.dtype = a.dtype;
  out.query = {a.query, a.q_heads * a.k_dim, a.k_dim};
  out.key = {a.key, a.k_heads * a.k_dim, a.k_dim};
  out.value = {a.value, a.v_heads * a.v_dim, a.v_dim};
  out.gate_dtype = a.gate_dtype;
  const std::int64_t width = a.per_key_decay ? a.k_dim : 1;
  out.decay = {a.decay, a.v_heads * width, width};
  out.beta = a.shared_beta ? HeadsView{a.beta, 1, 0} : HeadsView{a.beta, a.v_heads, 1};
  out.a_log = a.a_log;
  out.dt_bias = a.dt_bias;
  out.a_log_per_key = out.dt_bias_per_key = a.per_key_gate;
  out.cu_seqlens = a.cu_seqlens;
  out.initial_state = a.initial_state;
  out.final_state = a.final_state;
  out.output = a.output;
  return out;
}

}  // namespace

std::size_t varlen_linear_attention_scratch_bytes(Level level, const VarlenLinearAttentionArgs& args) noexcept {
  return gated_delta_net_scratch_bytes(level, as_gated_delta_net(args).shape);
}

void varlen_linear_attention(Level level, const VarlenLinearAttentionArgs& args, std::span<std::byte> scratch,
                             Executor& executor) noexcept {
  gated_delta_net(level, as_gated_delta_net(args), scratch, executor);
}

}  // namespace sluice

// What a Qwen hybrid checkpoint's config.json says, in one struct, whatever the family, nesting or spelling.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace sluice {

enum class LayerKind { linear_attention, full_attention };
enum class Activation { silu, gelu_tanh, gelu_erf, relu };
enum class OutputGateActivation { silu, sigmoid };  // of the gate z in linear_attn.norm (output_gate_type)

enum class RopeType { default_, linear, yarn };

// Rotary embedding. The derived values follow transformers 5.24 (facts: docs/formats or modeling_rope_utils).
struct RopeConfig {
  RopeType type = RopeType::default_;
  double theta = 10000.0;
  double partial_rotary_factor = 0.25;
  double factor = 1.0;
  std::array<std::int64_t, 3> mrope_section{0, 0, 0};  // all zero: plain positions
  bool mrope_interleaved = false;
  // Derived: cos and sin of position p and frequency i are factor * cos(p * inverse_frequency[i]).
  std::vector<double> inverse_frequency;  // [ceil(int(head_dim * partial) / 2)]
  double attention_factor = 1.0;          // multiplies cos and sin
  std::int64_t rotary_dim() const { return 2 * static_cast<std::int64_t>(inverse_frequency.size()); }
};

struct MoeConfig {
  std::int64_t experts = 0;
  std::int64_t experts_per_token = 0;
  std::int64_t intermediate = 0;         // of one expert
  std::int64_t shared_intermediate = 0;  // of the shared expert; 0: none
  bool normalize_top_k = true;           // divide the chosen weights by their sum
};

struct HybridConfig {
  std::string model_type;  // as the checkpoint says: qwen3_next, qwen3_5, qwen3_5_text, qwen3_5_moe, qwen3_5_moe_text
  std::string family;      // key of the weight table: qwen3_next, qwen3_5, qwen3_5_moe

  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;  // of dense MLP layers; 0 when every layer is MoE
  std::int64_t vocab = 0;
  std::int64_t max_positions = 0;

  std::int64_t heads = 0;     // query heads of full attention
  std::int64_t kv_heads = 0;  // key and value heads
  std::int64_t head_dim = 0;

  std::int64_t linear_k_heads = 0;  // Hk; query heads as well
  std::int64_t linear_v_heads = 0;  // Hv, a multiple of Hk
  std::int64_t linear_k_dim = 0;    // dk
  std::int64_t linear_v_dim = 0;    // dv
  std::int64_t conv_kernel = 0;     // K

  double rms_eps = 1e-6;
  Activation activation = Activation::silu;  // MLPs, experts and the convolution
  OutputGateActivation output_gate = OutputGateActivation::silu;
  bool attention_bias = false;
  bool tied = false;          // the embedding is the output projection
  bool tie_disputed = false;  // the root and text_config disagree about it; tied is then true

  std::vector<LayerKind> layer_kinds;  // [layers]
  std::vector<bool> moe_layers;        // [layers]
  std::optional<MoeConfig> moe;
  RopeConfig rope;

  std::optional<std::int64_t> bos_id;
  std::vector<std::int64_t> eos_ids;  // from config.json alone
  std::optional<std::int64_t> pad_id;

  bool has_vision = false;           // a vision-language wrapper; the tower is left out
  std::int64_t mtp_layers = 0;       // multi-token-prediction layers the checkpoint announces; left out
  std::vector<std::string> notices;  // what a user should know of how the config was read

  std::int64_t key_dim() const { return linear_k_heads * linear_k_dim; }
  std::int64_t value_dim() const { return linear_v_heads * linear_v_dim; }
  std::int64_t conv_dim() const { return 2 * key_dim() + value_dim(); }
  bool is_linear(std::int64_t layer) const {
    return layer_kinds[static_cast<std::size_t>(layer)] == LayerKind::linear_attention;
  }
  bool is_moe(std::int64_t layer) const { return moe_layers[static_cast<std::size_t>(layer)]; }
  std::vector<std::int64_t> layers_of(LayerKind kind) const;  // indices, ascending
};

}  // namespace sluice

// com.microsoft PagedAttention, f32 activations and caches beside the runtime's f16 and bf16.
#include "base/error.h"
#include "ops/adapters.h"
#include "ops/custom_op.h"
#include "ops/validate_paged_attention.h"

namespace sluice::ops {
namespace {

class PagedAttention {
 public:
  static constexpr std::string_view kDomain = kMicrosoftDomain;
  static constexpr std::string_view kName = "PagedAttention";
  static constexpr std::array<InPlace, 2> kInPlace{{{3, 1}, {4, 2}}};  // the caches
  static constexpr int kTypedInput = 3;                                // key_cache

  PagedAttention(const Node& node, Level level) : attributes_(read_paged_attention(node)), level_(level) {
    for (const int cache : {3, 4}) {
      const auto constant = node.constant_input(cache);
      if (constant) fail("{}: expected a cache to write to, found a constant", label(*constant));
    }
  }

  void compute(Context& context) const {
    const PagedAttentionInputs inputs = read_inputs(context);
    expect_aligned(inputs.key_cache);
    expect_aligned(inputs.value_cache);
    PagedAttentionCall call = validate_paged_attention(attributes_, inputs);
    PagedAttentionArgs& args = call.args;
    args.output = context.output(0, args.type, call.output);
    args.key_cache_in = inputs.key_cache.data;
    args.value_cache_in = inputs.value_cache.data;
    args.key_cache = context.output(1, args.cache_type, call.cache);
    args.value_cache = context.output(2, args.cache_type, call.cache);
    if ((args.key_cache == nullptr) != (args.value_cache == nullptr) && call.cache.elements() > 0) {
      fail("outputs 1 (key_cache_out) and 2 (value_cache_out) come together or not at all");
    }
    // The contract without the two outputs: the caches that were given are written in place.
    if (args.key_cache == nullptr) args.key_cache = context.written_input(inputs.key_cache);
    if (args.value_cache == nullptr) args.value_cache = context.written_input(inputs.value_cache);
    const Scratch scratch = context.scratch(paged_attention_scratch_bytes(args));
    SessionExecutor executor = context.executor();
    paged_attention(level_, args, scratch.bytes(), executor);
  }

 private:
  static PagedAttentionInputs read_inputs(Context& context) {
    return {
        .query = context.input(0),
        .key = context.input(1),
        .value = context.input(2),
        .key_cache = context.input_in_place(3),
        .value_cache = context.input_in_place(4),
        .cumulative_sequence_length = context.input(5),
        .past_seqlens = context.input(6),
        .block_table = context.input(7),
        .cos_cache = context.input(8),
        .sin_cache = context.input(9),
        .slot_mapping = context.input(10),
        .head_sink = context.input(11),
        .q_norm_weight = context.input(12),
        .k_norm_weight = context.input(13),
        .k_scale = context.input(14),
        .v_scale = context.input(15),
        .attention_metadata = context.input(16),
    };
  }

  PagedAttentionAttributes attributes_;
  Level level_;
};

}  // namespace

void add_paged_attention(const OrtApi& api, Level level, std::vector<CustomOp>& ops) {
  add_custom_op<PagedAttention>(api, level, ops);
}

}  // namespace sluice::ops

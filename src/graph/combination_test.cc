// Every node of a layer, with its inputs, attributes, types and states, in the six combinations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/decoder_testing.h"

namespace sluice {
namespace {

using namespace graph_testing;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::Pair;
using Strings = std::vector<std::string>;

const std::string kQkv = "/layers.0/linear";
const std::string kRecurrence = "/layers.0/linear/recurrence";

TEST(DenseLinearAttention, NodesOfALayer) {
  const DecoderGraph d =
      build(tiny_config(), combination(Layout::dense, Recurrence::linear_attention, Gates::effective));
  const Graph& g = d.model.graph;
  const Node& conv = node(g, kQkv + "/conv/CausalConvWithState");
  EXPECT_EQ(attributes(conv), "activation=silu ndim=1");
  EXPECT_EQ(describe(g, conv.inputs),
            (Strings{"f32 [batch_size, 56, sequence_length]", "f32 [56, 1, 4]", "-", "f32 [batch_size, 56, 3]"}));
  EXPECT_EQ(names(g, {conv.input(1), conv.input(3), conv.output(1)}),
            (Strings{"layers.0.linear.conv", "past_key_values.0.conv_state", "present.0.conv_state"}));

  const Node& gate = node(g, kRecurrence + "/LinearAttentionGate");
  EXPECT_EQ(names(g, {gate.input(1), gate.input(2)}),
            (Strings{"layers.0.linear.dt_bias", "layers.0.linear.A_log.neg_exp"}));
  EXPECT_EQ(producer(g, gate.input(0)).name, kQkv + "/a/Gemm");
  EXPECT_EQ(producer(g, gate.input(3)).name, kQkv + "/b/Gemm");

  const Node& recurrence = node(g, kRecurrence + "/LinearAttention");
  EXPECT_EQ(attributes(recurrence), "kv_num_heads=6 q_num_heads=2 scale=1 update_rule=gated_delta");
  EXPECT_EQ(describe(g, recurrence.inputs),
            (Strings{"f32 [batch_size, sequence_length, 16]", "f32 [batch_size, sequence_length, 16]",
                     "f32 [batch_size, sequence_length, 24]", "f32 [batch_size, 6, 8, 4]",
                     "f32 [batch_size, sequence_length, 6]", "f32 [batch_size, sequence_length, 6]"}));
  EXPECT_EQ(names(g, {recurrence.input(3), recurrence.output(1)}),
            (Strings{"past_key_values.0.recurrent_state", "present.0.recurrent_state"}));

  const Node& norm = node(g, kQkv + "/norm/GatedRMSNorm");
  EXPECT_EQ(attributes(norm), "epsilon=1e-06");
  EXPECT_EQ(describe(g, norm.inputs),
            (Strings{"f32 [batch_size*sequence_length, 24]", "f32 [4]", "f32 [batch_size*sequence_length, 24]"}));
  EXPECT_EQ(producer(g, norm.input(2)).name, kQkv + "/z/Gemm");
}

// The checkpoint's formula in one node: mean + 1e-6/dk under the root, 1/sqrt(dk) (and the query scale) as its weight.
TEST(EffectiveGates, QueriesAndKeysAreNormalisedByOneNodeEach) {
  const DecoderGraph d =
      build(tiny_config(), combination(Layout::dense, Recurrence::linear_attention, Gates::effective));
  const Graph& g = d.model.graph;
  const auto weight_of = [&](const Node& n) {
    float value = 0;
    std::memcpy(&value, std::get<0>(g.initializer(n.input(1))->data).data(), sizeof(value));
    return value;
  };
  const Node& query = node(g, kRecurrence + "/query_norm/RMSNormalization");
  const Node& key = node(g, kRecurrence + "/key_norm/RMSNormalization");
  EXPECT_EQ(attributes(query), "axis=-1 epsilon=1.25e-07 stash_type=1");
  EXPECT_EQ(attributes(key), attributes(query));
  EXPECT_FLOAT_EQ(weight_of(query), 1.0f / 8.0f);
  EXPECT_FLOAT_EQ(weight_of(key), 1.0f / std::sqrt(8.0f));
  EXPECT_EQ(describe(g, query.inputs), (Strings{"f32 [batch_size, sequence_length, 2, 8]", "f32 [8]"}));
}

TEST(DenseGatedDeltaNet, RawGatesGoToTheOperator) {
  const DecoderGraph d = build(tiny_config(), combination(Layout::dense, Recurrence::gated_delta_net, Gates::raw));
  const Graph& g = d.model.graph;
  const Node& n = node(g, kRecurrence + "/GatedDeltaNet");
  EXPECT_EQ(attributes(n),
            "beta_activation=sigmoid chunk_size=64 gate_activation=qwen qk_l2_norm=1 scale=0 update_rule=gated_delta");
  EXPECT_EQ(describe(g, n.inputs),
            (Strings{"f32 [batch_size, sequence_length, 2, 8]", "f32 [batch_size, sequence_length, 2, 8]",
                     "f32 [batch_size, sequence_length, 6, 4]", "-", "f32 [batch_size, sequence_length, 6]",
                     "f32 [batch_size, sequence_length, 6]", "f32 [batch_size, 6, 4, 8]", "f32 [6]", "f32 [6]"}));
  EXPECT_EQ(names(g, {n.input(6), n.input(7), n.input(8), n.output(1)}),
            (Strings{"past_key_values.0.recurrent_state", "layers.0.linear.A_log", "layers.0.linear.dt_bias",
                     "present.0.recurrent_state"}));
  EXPECT_THAT(histogram(g), Not(Contains(Pair("LinearAttentionGate", ::testing::_))));
}

TEST(DenseGatedDeltaNet, EffectiveGatesComeFromTheGraph) {
  const DecoderGraph d =
      build(tiny_config(), combination(Layout::dense, Recurrence::gated_delta_net, Gates::effective));
  const Graph& g = d.model.graph;
  const Node& n = node(g, kRecurrence + "/GatedDeltaNet");
  EXPECT_EQ(attributes(n),
            "beta_activation=none chunk_size=64 gate_activation=none qk_l2_norm=0 scale=1 update_rule=gated_delta");
  ASSERT_EQ(n.inputs.size(), 7u);
  EXPECT_FALSE(n.input(3));
  EXPECT_EQ(producer(g, n.input(0)).op, "RMSNormalization");
  EXPECT_EQ(producer(g, n.input(1)).op, "RMSNormalization");
  EXPECT_EQ(describe(g, n.input(6)), "f32 [batch_size, 6, 4, 8]");
}

TEST(PackedGatedDeltaNet, RawGatesGoToTheOperator) {
  const DecoderGraph d = build(tiny_config(), combination(Layout::packed, Recurrence::gated_delta_net, Gates::raw));
  const Graph& g = d.model.graph;
  const Node& conv = node(g, kQkv + "/conv/VarlenCausalConvWithState");
  EXPECT_EQ(attributes(conv), "activation=silu");
  EXPECT_EQ(describe(g, conv.inputs), (Strings{"f32 [num_tokens, 56]", "f32 [56, 1, 4]", "i32 [batch_size + 1]", "-",
                                               "f32 [batch_size, 56, 3]"}));
  const Node& n = node(g, kRecurrence + "/GatedDeltaNet");
  EXPECT_EQ(attributes(n),
            "beta_activation=sigmoid chunk_size=64 gate_activation=qwen qk_l2_norm=1 scale=0 update_rule=gated_delta");
  EXPECT_EQ(describe(g, n.inputs), (Strings{"f32 [num_tokens, 2, 8]", "f32 [num_tokens, 2, 8]",
                                            "f32 [num_tokens, 6, 4]", "i32 [batch_size + 1]", "f32 [num_tokens, 6]",
                                            "f32 [num_tokens, 6]", "f32 [batch_size, 6, 4, 8]", "f32 [6]", "f32 [6]"}));
  EXPECT_EQ(names(g, {n.input(3), n.input(6), n.input(7), n.input(8), n.output(1)}),
            (Strings{"cumulative_sequence_lengths", "past_key_values.0.recurrent_state", "layers.0.linear.A_log",
                     "layers.0.linear.dt_bias", "present.0.recurrent_state"}));
}

// The evaluation contract: seven inputs, gates and beta computed as for LinearAttention, then cast to f32.
TEST(PackedGatedDeltaNet, EffectiveGatesAreSevenInputs) {
  ExportOptions options = combination(Layout::packed, Recurrence::gated_delta_net, Gates::effective);
  options.target = Target::ort_cuda;
  const DecoderGraph d = build(tiny_config(), options);
  const Graph& g = d.model.graph;
  const Node& n = node(g, kRecurrence + "/GatedDeltaNet");
  EXPECT_EQ(attributes(n),
            "beta_activation=none chunk_size=64 gate_activation=none qk_l2_norm=0 scale=1 update_rule=gated_delta");
  EXPECT_EQ(describe(g, n.inputs), (Strings{"f16 [num_tokens, 2, 8]", "f16 [num_tokens, 2, 8]",
                                            "f16 [num_tokens, 6, 4]", "i32 [batch_size + 1]", "f32 [num_tokens, 6]",
                                            "f32 [num_tokens, 6]", "f32 [batch_size, 6, 4, 8]"}));
  const Node& cast = producer(g, n.input(4));
  EXPECT_EQ(cast.op, "Cast");
  const Node& gate = producer(g, cast.input(0));
  EXPECT_EQ(gate.op, "LinearAttentionGate");
  EXPECT_EQ(describe(g, gate.inputs), (Strings{"f16 [num_tokens, 6]", "f32 [6]", "f32 [6]", "f16 [num_tokens, 6]"}));
}

TEST(PackedVarlenLinearAttention, DiffersFromTheEvaluationGraphInOneOperator) {
  const DecoderGraph d =
      build(tiny_config(), combination(Layout::packed, Recurrence::varlen_linear_attention, Gates::effective));
  const DecoderGraph evaluation =
      build(tiny_config(), combination(Layout::packed, Recurrence::gated_delta_net, Gates::effective));
  const Graph& g = d.model.graph;
  const Node& n = node(g, kRecurrence + "/VarlenLinearAttention");
  EXPECT_EQ(attributes(n),
            "beta_activation=none decay_activation=none max_checkpoints=0 scale=1 update_rule=gated_delta");
  EXPECT_EQ(
      describe(g, n.inputs),
      (Strings{"f32 [num_tokens, 2, 8]", "f32 [num_tokens, 2, 8]", "f32 [num_tokens, 6, 4]", "i32 [batch_size + 1]",
               "f32 [batch_size, 6, 4, 8]", "f32 [num_tokens, 6]", "f32 [num_tokens, 6]"}));
  ASSERT_EQ(g.nodes().size(), evaluation.model.graph.nodes().size());
  for (std::size_t i = 0; i < g.nodes().size(); ++i) {
    const Node& other = evaluation.model.graph.nodes()[i];
    EXPECT_EQ(g.nodes()[i].op == "VarlenLinearAttention" ? "GatedDeltaNet" : g.nodes()[i].op, other.op);
  }
}

TEST(DenseAttention, GroupQueryAttentionBetweenRotaryAndGate) {
  const DecoderGraph d =
      build(tiny_config(), combination(Layout::dense, Recurrence::linear_attention, Gates::effective));
  const Graph& g = d.model.graph;
  const Node& attention = node(g, "/layers.2/attn/GroupQueryAttention");
  EXPECT_EQ(attributes(attention),
            "do_rotary=0 kv_num_heads=2 local_window_size=-1 num_heads=4 rotary_interleaved=0 scale=0.25 softcap=0");
  EXPECT_EQ(describe(g, attention.inputs),
            (Strings{"f32 [batch_size, sequence_length, 64]", "f32 [batch_size, sequence_length, 32]",
                     "f32 [batch_size, sequence_length, 32]", "f32 [batch_size, 2, past_sequence_length, 16]",
                     "f32 [batch_size, 2, past_sequence_length, 16]", "i32 [batch_size]", "i32 []"}));
  EXPECT_EQ(names(g, {attention.input(3), attention.input(4), attention.output(1), attention.output(2)}),
            (Strings{"past_key_values.2.key", "past_key_values.2.value", "present.2.key", "present.2.value"}));
  const Node& rope = node(g, "/layers.2/attn/q_rope/RotaryEmbedding");
  EXPECT_EQ(attributes(rope), "interleaved=0 is_packed_batching=0 num_heads=4 rotary_embedding_dim=4");
  EXPECT_EQ(names(g, {rope.input(1), rope.input(2), rope.input(3)}),
            (Strings{"position_ids", "cos_table", "sin_table"}));
  EXPECT_EQ(describe(g, rope.input(2)), "f32 [2048, 2]");
  const Node& norm = node(g, "/layers.2/attn/k_norm/RMSNormalization");
  EXPECT_EQ(names(g, {norm.input(1)}), Strings{"layers.2.attn.k_norm"});
  const Node& gated = node(g, "/layers.2/attn/gate/Mul");
  EXPECT_EQ(producer(g, gated.input(1)).op, "Sigmoid");
}

TEST(PackedAttention, PagedAttentionInItsSeventeenSlots) {
  const DecoderGraph d = build(tiny_config(), combination(Layout::packed, Recurrence::gated_delta_net, Gates::raw));
  const Graph& g = d.model.graph;
  const Node& attention = node(g, "/layers.2/attn/PagedAttention");
  EXPECT_EQ(attributes(attention),
            "do_rotary=0 kv_num_heads=2 local_window_size=-1 num_heads=4 rotary_interleaved=0 scale=0.25 softcap=0");
  EXPECT_EQ(describe(g, attention.inputs),
            (Strings{"f32 [num_tokens, 64]", "f32 [num_tokens, 32]", "f32 [num_tokens, 32]",
                     "f32 [num_blocks, block_size, 2, 16]", "f32 [num_blocks, block_size, 2, 16]",
                     "i32 [batch_size + 1]", "i32 [batch_size]", "i32 [batch_size, max_num_blocks]", "-", "-", "-", "-",
                     "-", "-", "-", "-", "i32 [3]"}));
  EXPECT_EQ(names(g, {attention.input(5), attention.input(6), attention.input(7), attention.input(16)}),
            (Strings{"cumulative_sequence_lengths", "past_sequence_lengths", "block_table", "attention_metadata"}));
  const Node& rope = node(g, "/layers.2/attn/k_rope/RotaryEmbedding");
  EXPECT_EQ(attributes(rope), "interleaved=0 is_packed_batching=1 num_heads=2 rotary_embedding_dim=4");
  EXPECT_EQ(describe(g, rope.input(0)), "f32 [1, num_tokens, 32]");
  EXPECT_EQ(describe(g, rope.input(1)), "i64 [1, num_tokens]");
}

TEST(PackedAttention, MultimodalSectionsTakeThreePlanesOfPositions) {
  HybridConfig config = tiny_config();
  config.rope.mrope_section = {1, 1, 0};
  config.rope.mrope_interleaved = true;
  const DecoderGraph d = build(config, combination(Layout::packed, Recurrence::gated_delta_net, Gates::raw));
  const Graph& g = d.model.graph;
  EXPECT_EQ(describe(g, g.find("position_ids").value()), "i64 [3, num_tokens]");
  const Node& rope = node(g, "/layers.2/attn/q_rope/MRotaryEmbedding");
  EXPECT_EQ(attributes(rope),
            "interleaved=0 is_packed_batching=1 mrope_layout=1 mrope_section=1,1,0 num_heads=4 rotary_embedding_dim=4");
  EXPECT_EQ(describe(g, rope.input(1)), "i64 [3, 1, num_tokens]");
  // Text positions are equal on the three planes, so a dense graph needs one.
  const DecoderGraph dense = build(config, combination(Layout::dense, Recurrence::gated_delta_net, Gates::raw));
  EXPECT_EQ(describe(dense.model.graph, dense.model.graph.find("position_ids").value()),
            "i64 [batch_size, sequence_length]");
}

TEST(Experts, StockRuntimesTakeInterleavedRowsAndOurLibraryTheCheckpoints) {
  const DecoderGraph stock =
      build(tiny_config(), combination(Layout::dense, Recurrence::linear_attention, Gates::effective));
  const Graph& g = stock.model.graph;
  const Node& moe = node(g, "/layers.1/moe/MoE");
  EXPECT_EQ(attributes(moe), "activation_type=swiglu k=2 normalize_routing_weights=1 swiglu_fusion=1");
  EXPECT_EQ(describe(g, moe.inputs),
            (Strings{"f32 [batch_size*sequence_length, 24]", "f32 [batch_size*sequence_length, 5]", "f32 [5, 24, 24]",
                     "-", "f32 [5, 24, 12]"}));
  EXPECT_EQ(g.initializer(moe.input(2))->weight_recipe()->transforms,
            std::vector<Transform>{Transform::interleave_gate_up});
  const Node& add = node(g, "/layers.1/moe/shared/GatedAdd");
  EXPECT_EQ(describe(g, add.input(2)), "f32 [batch_size*sequence_length, 1]");
  EXPECT_EQ(producer(g, add.input(0)).name, moe.name);

  const DecoderGraph own = build(tiny_config(), combination(Layout::packed, Recurrence::gated_delta_net, Gates::raw));
  const Node& ours = node(own.model.graph, "/layers.1/moe/MoE");
  EXPECT_EQ(ours.domain, "sluice");
  EXPECT_EQ(attributes(ours), "activation=silu k=2 normalize=1");
  EXPECT_EQ(describe(own.model.graph, ours.inputs),
            (Strings{"f32 [num_tokens, 24]", "f32 [num_tokens, 5]", "bf16 [5, 24, 24]", "bf16 [5, 24, 12]"}));
}

TEST(Experts, UnnormalisedWeightsAndNoSharedExpertAreSaid) {
  HybridConfig config = tiny_config();
  config.moe->normalize_top_k = false;
  config.moe->shared_intermediate = 0;
  for (const ExportOptions& options : six_combinations()) {
    const DecoderGraph d = build(config, options);
    EXPECT_THAT(histogram(d.model.graph), Not(Contains(Pair("GatedAdd", ::testing::_))));
    const Node& moe = node(d.model.graph, "/layers.1/moe/MoE");
    EXPECT_THAT(attributes(moe),
                ::testing::HasSubstr(options.target == Target::sluice ? "normalize=0" : "normalize_routing_weights=0"));
  }
}

TEST(Variants, AttentionBiasSigmoidGateAndGeluReachTheirOperators) {
  HybridConfig config = tiny_config();
  config.moe_layers.assign(4, false);
  config.attention_bias = true;
  config.output_gate = OutputGateActivation::sigmoid;
  config.activation = Activation::gelu_tanh;
  for (const ExportOptions& options : six_combinations()) {
    const DecoderGraph d = build(config, options);
    const Graph& g = d.model.graph;
    const std::string product = options.target == Target::sluice ? "/Linear" : "/Gemm";
    EXPECT_EQ(names(g, {node(g, "/layers.2/attn/q_gate" + product).input(2)}), Strings{"layers.2.attn.q_gate_bias"});
    EXPECT_EQ(names(g, {node(g, "/layers.2/attn/o" + product).input(2)}), Strings{"layers.2.attn.o_bias"});
    EXPECT_EQ(attributes(node(g, kQkv + "/norm/GatedRMSNorm")), "activation=sigmoid epsilon=1e-06");
    EXPECT_EQ(attributes(node(g, "/layers.0/mlp/activation/Gelu")), "approximate=tanh");
    // The convolution has silu or nothing of its own.
    EXPECT_EQ(attributes(node(g, kQkv + "/conv/activation/Gelu")), "approximate=tanh");
    const Node& conv =
        node(g, kQkv + "/conv/" + (options.target == Target::sluice ? "Varlen" : "") + "CausalConvWithState");
    EXPECT_THAT(attributes(conv), ::testing::HasSubstr("activation=none"));
  }
}

TEST(Variants, AKernelOfOneTapHasAnEmptyState) {
  HybridConfig config = tiny_config();
  config.conv_kernel = 1;
  for (const ExportOptions& options : six_combinations()) {
    const DecoderGraph d = build(config, options);
    const Graph& g = d.model.graph;
    EXPECT_EQ(describe(g, g.find("past_key_values.0.conv_state").value()), "f32 [batch_size, 56, 0]");
  }
}

TEST(Variants, WithoutRotaryDimensionsNothingRotates) {
  HybridConfig config = tiny_config();
  config.rope.inverse_frequency.clear();
  for (const ExportOptions& options : six_combinations()) {
    const auto counts = histogram(build(config, options).model.graph);
    EXPECT_THAT(counts, Not(Contains(Pair("RotaryEmbedding", ::testing::_))));
  }
}

TEST(Variants, LayersOfOneKindDeclareOnlyWhatTheyRead) {
  HybridConfig linear = tiny_config();
  linear.layer_kinds.assign(4, LayerKind::linear_attention);
  HybridConfig full = tiny_config();
  full.layer_kinds.assign(4, LayerKind::full_attention);
  for (const ExportOptions& options : six_combinations()) {
    const DecoderGraph d = build(linear, options);
    for (const char* input : {"attention_mask", "position_ids", "block_table", "past_sequence_lengths"}) {
      EXPECT_FALSE(d.model.graph.find(input).has_value()) << input;
    }
    EXPECT_EQ(d.info.states.size(), 8u);
    const DecoderGraph attention_alone = build(full, options);
    EXPECT_TRUE(attention_alone.model.graph.find("position_ids").has_value());
    for (const StateInfo& state : attention_alone.info.states) {
      EXPECT_TRUE(state.kind == StateKind::growing_kv || state.kind == StateKind::paged_kv);
    }
  }
}

TEST(Half, OperatorsGetTheDTypesTheyAskFor) {
  ExportOptions options = combination(Layout::dense, Recurrence::linear_attention, Gates::effective);
  options.activation = DType::f16;
  const DecoderGraph d = build(tiny_config(), options);
  const Graph& g = d.model.graph;
  const Node& gate = node(g, kRecurrence + "/LinearAttentionGate");
  EXPECT_EQ(describe(g, gate.input(1)), "f32 [6]");  // dt_bias and decay scale are f32 whatever the activations are
  EXPECT_EQ(describe(g, gate.input(2)), "f32 [6]");
  const Node& recurrence = node(g, kRecurrence + "/LinearAttention");
  for (const Value input : recurrence.inputs) EXPECT_EQ(g.info(input).dtype, DType::f16);
  const Node& rope = node(g, "/layers.2/attn/q_rope/RotaryEmbedding");
  for (const std::size_t i : {0u, 2u, 3u}) EXPECT_EQ(g.info(rope.input(i)).dtype, DType::f32);
  EXPECT_EQ(g.info(g.find("logits").value()).dtype, DType::f16);

  options = combination(Layout::packed, Recurrence::gated_delta_net, Gates::raw);
  options.target = Target::ort_cuda;
  const DecoderGraph packed = build(tiny_config(), options);
  const Node& delta = node(packed.model.graph, kRecurrence + "/GatedDeltaNet");
  EXPECT_EQ(
      describe(packed.model.graph, delta.inputs),
      (Strings{"f16 [num_tokens, 2, 8]", "f16 [num_tokens, 2, 8]", "f16 [num_tokens, 6, 4]", "i32 [batch_size + 1]",
               "f32 [num_tokens, 6]", "f32 [num_tokens, 6]", "f32 [batch_size, 6, 4, 8]", "f32 [6]", "f32 [6]"}));
  const Value conv_state = packed.model.graph.find("past_key_values.0.conv_state").value();
  EXPECT_EQ(packed.model.graph.info(conv_state).dtype, DType::f16);
}

TEST(Half, BrainFloatLogitsAreWidened) {
  ExportOptions options = combination(Layout::packed, Recurrence::gated_delta_net, Gates::raw);
  options.target = Target::ort_cuda;
  options.activation = DType::bf16;
  const DecoderGraph d = build(tiny_config(), options);
  EXPECT_EQ(describe(d.model.graph, d.model.graph.find("logits").value()), "f32 [num_tokens, 50]");
  EXPECT_EQ(producer(d.model.graph, d.model.graph.find("logits").value()).op, "Cast");
}

TEST(PrunedHead, DenseKeepsTheLastPositionAndItsMlpAlone) {
  ExportOptions options = combination(Layout::dense, Recurrence::linear_attention, Gates::effective);
  options.prune_lm_head = true;
  const DecoderGraph d = build(tiny_config(), options);
  const Graph& g = d.model.graph;
  EXPECT_EQ(describe(g, g.find("logits").value()), "f32 [batch_size, 1, 50]");
  EXPECT_EQ(describe(g, node(g, "/layers.3/moe/MoE").input(0)), "f32 [batch_size, 24]");
  EXPECT_EQ(describe(g, node(g, "/layers.1/moe/MoE").input(0)), "f32 [batch_size*sequence_length, 24]");
}

TEST(PrunedHead, PackedKeepsTheRowsAskedFor) {
  ExportOptions options = combination(Layout::packed, Recurrence::gated_delta_net, Gates::raw);
  options.prune_lm_head = true;
  const DecoderGraph d = build(tiny_config(), options);
  const Graph& g = d.model.graph;
  EXPECT_EQ(describe(g, g.find("logits_indices").value()), "i32 [num_logits]");
  EXPECT_EQ(describe(g, g.find("logits").value()), "f32 [num_logits, 50]");
  EXPECT_EQ(describe(g, node(g, "/layers.3/moe/MoE").input(0)), "f32 [num_logits, 24]");
  EXPECT_EQ(describe(g, node(g, "/layers.3/attn/PagedAttention").input(0)), "f32 [num_tokens, 64]");
}

TEST(StateUpdates, AreCapturedByBothOperatorsOfALinearLayer) {
  ExportOptions options = combination(Layout::packed, Recurrence::gated_delta_net, Gates::raw);
  options.state_update_capacity = 3;
  const DecoderGraph d = build(tiny_config(), options);
  const Graph& g = d.model.graph;
  const Node& conv = node(g, kQkv + "/conv/VarlenCausalConvWithState");
  EXPECT_EQ(attributes(conv), "activation=silu state_update_capacity=3");
  EXPECT_EQ(names(g, {conv.input(5), conv.output(2)}),
            (Strings{"state_update_capture_count", "state_update.0.conv_value"}));
  const Node& delta = node(g, kRecurrence + "/GatedDeltaNet");
  EXPECT_EQ(names(g, {delta.input(9), delta.input(10), delta.output(2)}),
            (Strings{"state_update_capture_count", "state_update_active", "state_update.0.recurrent_capsule"}));
  EXPECT_EQ(describe(g, conv.output(2)), "f32 [batch_size, 3, 56]");
  EXPECT_EQ(describe(g, delta.output(2)), "f32 [batch_size, " + std::to_string(3 * (6 + 2 * 8 + 6 * 4)) + "]");
  std::vector<std::string> outputs;
  for (const PortInfo& port : d.info.outputs) outputs.push_back(port.name);
  EXPECT_THAT(outputs, ElementsAre("logits", "state_update.0.conv_value", "state_update.1.conv_value",
                                   "state_update.0.recurrent_capsule", "state_update.1.recurrent_capsule"));
}

}  // namespace
}  // namespace sluice

#include "target/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace sluice {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two linear layers and a full one, the second with experts.
HybridConfig small_config() {
  HybridConfig config;
  config.layers = 3;
  config.hidden = 64;
  config.intermediate = 96;
  config.vocab = 320;
  config.max_positions = 4096;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 32;
  config.linear_k_heads = 2;
  config.linear_v_heads = 4;
  config.linear_k_dim = config.linear_v_dim = 16;
  config.conv_kernel = 4;
  config.layer_kinds = {LayerKind::linear_attention, LayerKind::linear_attention, LayerKind::full_attention};
  config.moe_layers = {false, true, false};
  config.moe = MoeConfig{8, 2, 32, 32, true};
  config.rope.inverse_frequency = {1, 0.5, 0.25, 0.125};
  config.rope.mrope_section = {2, 1, 1};
  return config;
}

ExportOptions to(Target target) {
  ExportOptions options;
  options.target = target;
  return options;
}

std::string refusal(const ExportOptions& options, const HybridConfig& config = small_config()) {
  try {
    resolve(config, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Resolve, EachTargetHasItsDefaults) {
  const ExportPlan cpu = resolve(small_config(), to(Target::ort_cpu));
  EXPECT_EQ(cpu.layout, Layout::dense);
  EXPECT_EQ(cpu.recurrence, Recurrence::linear_attention);
  EXPECT_EQ(cpu.gates, Gates::effective);
  EXPECT_EQ(cpu.activation, DType::f32);
  EXPECT_EQ(cpu.weights, WeightStorage::fp32);
  EXPECT_EQ(cpu.linear, LinearForm::gemm);
  EXPECT_EQ(cpu.rope, RopeForm::rotary);

  const ExportPlan cuda = resolve(small_config(), to(Target::ort_cuda));
  EXPECT_EQ(cuda.layout, Layout::packed);
  EXPECT_EQ(cuda.recurrence, Recurrence::gated_delta_net);
  EXPECT_EQ(cuda.gates, Gates::raw);
  EXPECT_EQ(cuda.activation, DType::f16);
  EXPECT_EQ(cuda.weights, WeightStorage::fp16);
  EXPECT_EQ(cuda.rope, RopeForm::mrotary);
  EXPECT_EQ(cuda.block_size, 256);
  EXPECT_EQ(cuda.kv_blocks, 0);

  const ExportPlan own = resolve(small_config(), to(Target::sluice));
  EXPECT_EQ(own.layout, Layout::packed);
  EXPECT_EQ(own.recurrence, Recurrence::gated_delta_net);
  EXPECT_EQ(own.gates, Gates::raw);
  EXPECT_EQ(own.activation, DType::f32);
  EXPECT_EQ(own.weights, WeightStorage::source);
  EXPECT_EQ(own.stored(DType::bf16), DType::bf16);
  EXPECT_EQ(own.linear, LinearForm::linear);
  EXPECT_EQ(own.block_size, 16);
  EXPECT_EQ(own.kv_blocks, 4096 / 16);
}

// The table of design.md: every combination of the five choices, and only six of them anywhere.
TEST(Resolve, SixCombinationsExistAndEachTargetRunsItsOwn) {
  struct Row {
    Layout layout;
    Recurrence recurrence;
    Gates gates;
    std::vector<Target> targets;
  };
  const std::vector<Row> legal{
      {Layout::dense, Recurrence::linear_attention, Gates::effective, {Target::ort_cpu, Target::ort_cuda}},
      {Layout::dense, Recurrence::gated_delta_net, Gates::raw, {Target::ort_cpu, Target::ort_cuda}},
      {Layout::dense, Recurrence::gated_delta_net, Gates::effective, {Target::ort_cpu, Target::ort_cuda}},
      {Layout::packed, Recurrence::gated_delta_net, Gates::raw, {Target::ort_cuda, Target::sluice}},
      {Layout::packed, Recurrence::gated_delta_net, Gates::effective, {Target::ort_cuda, Target::sluice}},
      {Layout::packed, Recurrence::varlen_linear_attention, Gates::effective, {Target::sluice}}};
  for (const Target target : {Target::ort_cpu, Target::ort_cuda, Target::sluice}) {
    for (const Layout layout : {Layout::dense, Layout::packed}) {
      for (const Recurrence recurrence :
           {Recurrence::linear_attention, Recurrence::gated_delta_net, Recurrence::varlen_linear_attention}) {
        for (const Gates gates : {Gates::raw, Gates::effective}) {
          ExportOptions options = to(target);
          options.layout = layout;
          options.recurrence = recurrence;
          options.gates = gates;
          const auto row = std::ranges::find_if(legal, [&](const Row& r) {
            return r.layout == layout && r.recurrence == recurrence && r.gates == gates;
          });
          const bool runs = row != legal.end() && std::ranges::find(row->targets, target) != row->targets.end();
          EXPECT_EQ(refusal(options) == "accepted", runs)
              << name_of(target) << " " << name_of(layout) << " " << name_of(recurrence) << " " << name_of(gates);
        }
      }
    }
  }
}

TEST(Resolve, StatesFollowTheRecurrence) {
  ExportOptions options = to(Target::ort_cpu);
  options.activation = DType::f16;
  const ExportPlan dense = resolve(small_config(), options);
  EXPECT_EQ(dense.recurrent_state, DType::f16);
  EXPECT_FALSE(dense.value_major_state);
  EXPECT_EQ(dense.conv_state, DType::f16);
  EXPECT_EQ(dense.qk_norm_epsilon, 1e-6);
  options.recurrence = Recurrence::gated_delta_net;
  const ExportPlan delta = resolve(small_config(), options);
  EXPECT_EQ(delta.recurrent_state, DType::f32);
  EXPECT_TRUE(delta.value_major_state);
  EXPECT_EQ(delta.conv_state, DType::f16);
  EXPECT_EQ(delta.qk_norm_epsilon, 1e-12);
  options.gates = Gates::effective;
  EXPECT_EQ(resolve(small_config(), options).qk_norm_epsilon, 1e-6);
}

TEST(Resolve, LayoutsARuntimeLacksAreRefusedWithTheReason) {
  ExportOptions options = to(Target::ort_cpu);
  options.layout = Layout::packed;
  EXPECT_THAT(refusal(options), HasSubstr("no PagedAttention kernel on a CPU"));
  options.recurrence = Recurrence::linear_attention;
  EXPECT_THAT(refusal(options), HasSubstr("no packed form"));
  options = to(Target::sluice);
  options.layout = Layout::dense;
  EXPECT_THAT(refusal(options), HasSubstr("use --target ort-cpu"));
  options = to(Target::ort_cuda);
  options.recurrence = Recurrence::varlen_linear_attention;
  EXPECT_THAT(refusal(options), HasSubstr("no released ONNX Runtime has VarlenLinearAttention"));
  options = to(Target::ort_cpu);
  options.gates = Gates::raw;
  EXPECT_THAT(refusal(options), HasSubstr("takes effective gates only"));
}

TEST(Resolve, DTypesAKernelLacksAreRefusedWithTheReason) {
  const auto with = [](Target target, DType dtype) {
    ExportOptions options = to(target);
    options.activation = dtype;
    return options;
  };
  EXPECT_THAT(refusal(with(Target::ort_cpu, DType::bf16)), HasSubstr("no bf16 matrix product on a CPU"));
  EXPECT_THAT(refusal(with(Target::sluice, DType::f16)), HasSubstr("sluice.MoE compute in fp32"));
  EXPECT_THAT(refusal(with(Target::ort_cuda, DType::f32)), HasSubstr("no fp32 kernel on CUDA"));
  ExportOptions evaluation = with(Target::ort_cuda, DType::bf16);
  EXPECT_EQ(refusal(evaluation), "accepted");
  evaluation.gates = Gates::effective;
  EXPECT_THAT(refusal(evaluation), HasSubstr("not with effective gates"));
  EXPECT_THAT(refusal(with(Target::ort_cpu, DType::i32)), HasSubstr("expected fp32, fp16 or bf16"));
  // Without an attention layer nothing lacks f32.
  ExportOptions cut = with(Target::ort_cuda, DType::f32);
  cut.num_layers = 2;
  EXPECT_EQ(refusal(cut), "accepted");
}

TEST(Resolve, WeightsAreStoredWhereTheyCanBeRead) {
  ExportOptions options = to(Target::ort_cuda);
  options.weights = WeightStorage::source;
  EXPECT_THAT(refusal(options), HasSubstr("stores weights in the activation dtype fp16"));
  options = to(Target::ort_cpu);
  options.weights = WeightStorage::bf16;
  const ExportPlan plan = resolve(small_config(), options);
  EXPECT_EQ(plan.stored(DType::f32), DType::bf16);
  EXPECT_THAT(plan.notices, Contains(HasSubstr("converted to fp32 when the runtime loads them")));
}

TEST(Resolve, WhatOperatorsCannotTakeIsRefusedByConfigKey) {
  HybridConfig narrow = small_config();
  narrow.head_dim = 20;
  EXPECT_THAT(refusal(to(Target::ort_cpu), narrow), HasSubstr("head_dim 20"));
  EXPECT_EQ(refusal(to(Target::sluice), narrow), "accepted");

  HybridConfig gelu = small_config();
  gelu.activation = Activation::gelu_tanh;
  EXPECT_THAT(refusal(to(Target::ort_cpu), gelu), HasSubstr("hidden_act"));
  EXPECT_EQ(refusal(to(Target::sluice), gelu), "accepted");
  gelu.activation = Activation::relu;
  EXPECT_THAT(refusal(to(Target::sluice), gelu), HasSubstr("silu or gelu_pytorch_tanh only"));
  gelu.moe_layers = {false, false, false};
  EXPECT_EQ(refusal(to(Target::ort_cpu), gelu), "accepted");

  HybridConfig sections = small_config();
  sections.rope.mrope_section = {2, 2, 2};
  EXPECT_THAT(refusal(to(Target::sluice), sections), HasSubstr("mrope_section sums to 6"));
  EXPECT_EQ(refusal(to(Target::ort_cpu), sections), "accepted");  // one plane of positions: no sections
}

TEST(Resolve, PagedOptionsBelongToPackedLayouts) {
  ExportOptions options = to(Target::ort_cpu);
  options.block_size = 16;
  EXPECT_THAT(refusal(options), HasSubstr("--block-size 16: only a packed layout has a paged cache"));
  options = to(Target::ort_cuda);
  options.block_size = 24;
  EXPECT_THAT(refusal(options), HasSubstr("power of two"));
  options = to(Target::sluice);
  options.block_size = 24;
  options.kv_blocks = 10;
  options.max_batch = 3;
  const ExportPlan plan = resolve(small_config(), options);
  EXPECT_EQ(plan.block_size, 24);
  EXPECT_EQ(plan.kv_blocks, 10);
  EXPECT_EQ(plan.max_batch, 3);
  EXPECT_THAT(plan.notices, Contains(HasSubstr("hold at most 240 tokens")));
  options.kv_blocks = std::int64_t{1} << 31;
  EXPECT_THAT(refusal(options), HasSubstr("--kv-blocks"));
  options.kv_blocks = 1;
  options.max_batch = 257;
  EXPECT_THAT(refusal(options), HasSubstr("--max-batch 257"));
}

TEST(Resolve, StateUpdatesAreCapturedByRawPackedDeltaNetsAlone) {
  ExportOptions options = to(Target::sluice);
  options.state_update_capacity = 4;
  EXPECT_EQ(resolve(small_config(), options).state_update_capacity, 4);
  options.gates = Gates::effective;
  EXPECT_THAT(refusal(options), HasSubstr("only packed gated-delta-net with raw gates"));
  options = to(Target::ort_cpu);
  options.state_update_capacity = 4;
  EXPECT_THAT(refusal(options), HasSubstr("--state-update-capacity 4"));
  options.state_update_capacity = 9;
  EXPECT_THAT(refusal(options), HasSubstr("expected 0..8"));
  HybridConfig attention_alone = small_config();
  attention_alone.layer_kinds.assign(3, LayerKind::full_attention);
  options = to(Target::sluice);
  options.state_update_capacity = 1;
  EXPECT_THAT(refusal(options, attention_alone), HasSubstr("no linear-attention layer"));
}

TEST(Resolve, LayersAndLengthsStayInRange) {
  ExportOptions options = to(Target::ort_cpu);
  options.num_layers = 4;
  EXPECT_THAT(refusal(options), HasSubstr("--num-layers 4: the model has 3 layers"));
  options.num_layers = 0;
  EXPECT_THAT(refusal(options), HasSubstr("expected 1..3"));
  options.num_layers = 2;
  EXPECT_THAT(resolve(small_config(), options).notices, Contains(HasSubstr("leading 2 of 3 layers")));
  options = to(Target::ort_cpu);
  options.max_length = 0;
  EXPECT_THAT(refusal(options), HasSubstr("--max-length 0"));
  options.max_length = 100;
  EXPECT_EQ(resolve(small_config(), options).max_length, 100);
  options.max_length = 5000;
  EXPECT_THAT(resolve(small_config(), options).notices, Contains(HasSubstr("of a model made for 4096")));
}

TEST(Resolve, DefaultLengthsAreTheModelsWithinReason) {
  HybridConfig config = small_config();
  EXPECT_EQ(resolve(config, to(Target::ort_cpu)).max_length, 4096);
  EXPECT_THAT(resolve(config, to(Target::ort_cpu)).notices, IsEmpty());
  config.max_positions = 262144;
  EXPECT_EQ(resolve(config, to(Target::ort_cpu)).max_length, 32768);
  EXPECT_THAT(resolve(config, to(Target::ort_cpu)).notices, Contains(HasSubstr("--max-length raises it")));
  config.max_positions = 128;
  EXPECT_EQ(resolve(config, to(Target::ort_cpu)).max_length, 1024);
}

TEST(Resolve, AllLinearPackedGraphsAreNoticed) {
  HybridConfig config = small_config();
  config.layer_kinds.assign(3, LayerKind::linear_attention);
  EXPECT_THAT(resolve(config, to(Target::sluice)).notices, Contains(HasSubstr("no full-attention layer")));
}

TEST(LeadingLayers, CutsEverythingThatIsPerLayer) {
  const HybridConfig cut = leading_layers(small_config(), 2);
  EXPECT_EQ(cut.layers, 2);
  EXPECT_EQ(cut.layer_kinds.size(), 2u);
  EXPECT_EQ(cut.moe_layers, (std::vector<bool>{false, true}));
}

TEST(Names, GoBothWays) {
  for (const Target target : {Target::ort_cpu, Target::ort_cuda, Target::sluice}) {
    EXPECT_EQ(target_from_name(name_of(target)), target);
  }
  for (const WeightStorage storage :
       {WeightStorage::source, WeightStorage::fp32, WeightStorage::fp16, WeightStorage::bf16}) {
    EXPECT_EQ(weight_storage_from_name(name_of(storage)), storage);
  }
  EXPECT_FALSE(target_from_name("ort").has_value());
  EXPECT_FALSE(weight_storage_from_name("f32").has_value());
}

}  // namespace
}  // namespace sluice

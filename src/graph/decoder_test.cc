// What holds of a whole decoder graph, whatever the combination.
#include "graph/decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "architecture/weight_table.h"
#include "base/json.h"
#include "graph/builder.h"
#include "graph/decoder_testing.h"
#include "opset/operators.h"
#include "tests/support/python.h"

namespace sluice {
namespace {

using namespace graph_testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Places external initializers one after the other, as export does.
std::uint64_t place(DecoderGraph& d) {
  std::uint64_t offset = 0;
  for (Initializer& initializer : d.model.graph.initializers()) {
    if (!initializer.is_external()) continue;
    const std::uint64_t bytes = byte_count(initializer.shape, d.model.graph.info(initializer.value).dtype).value();
    initializer.placement = {"model.onnx.data", offset, bytes};
    offset += bytes;
  }
  return offset;
}

TEST(Decoder, TheSameModelGivesTheSameBytes) {
  for (const ExportOptions& options : six_combinations()) {
    DecoderGraph first = build(tiny_config(), options);
    DecoderGraph second = build(tiny_config(), options);
    place(first);
    place(second);
    const std::string bytes = serialize(first.model);
    EXPECT_EQ(bytes, serialize(second.model));
    EXPECT_EQ(bytes, serialize(parse_model(bytes, "model.onnx")));
  }
}

TEST(Decoder, EveryWeightOfTheTableIsOneInitializer) {
  for (const bool tied : {false, true}) {
    HybridConfig config = tiny_config();
    config.tied = tied;
    config.attention_bias = true;
    std::map<std::string, Shape> table;
    for (const WeightSpec& spec : weight_table(config)) table.emplace(spec.name, spec.shape);
    for (const ExportOptions& options : six_combinations()) {
      const DecoderGraph d = build(config, options);
      std::set<std::string> used;
      for (const Initializer& initializer : d.model.graph.initializers()) {
        const WeightRecipe* recipe = initializer.weight_recipe();
        if (recipe == nullptr) continue;
        ASSERT_EQ(recipe->weights.size(), 1u);
        ASSERT_TRUE(table.contains(recipe->weights[0])) << recipe->weights[0];
        EXPECT_TRUE(used.insert(recipe->weights[0]).second) << recipe->weights[0];
        EXPECT_EQ(initializer.shape, table.at(recipe->weights[0])) << recipe->weights[0];
      }
      EXPECT_EQ(used.size(), table.size());
    }
  }
}

TEST(Decoder, CutLayersLeaveTheirWeightsOut) {
  ExportOptions options = six_combinations().front();
  options.num_layers = 1;
  const DecoderGraph d = build(tiny_config(), options);
  std::set<std::string> used;
  for (const Initializer& initializer : d.model.graph.initializers()) {
    if (const WeightRecipe* recipe = initializer.weight_recipe()) used.insert(recipe->weights.front());
  }
  std::set<std::string> expected;
  for (const WeightSpec& spec : weight_table(leading_layers(tiny_config(), 1))) expected.insert(spec.name);
  EXPECT_EQ(used, expected);
  EXPECT_EQ(d.info.states.size(), 2u);
}

TEST(Decoder, SourceWeightsStayInTheirOwnDTypes) {
  HybridConfig config = tiny_config();
  const ExportPlan plan = resolve(config, combination(Layout::packed, Recurrence::gated_delta_net, Gates::raw));
  const DecoderGraph d = build_decoder(config, plan, [](std::string_view name) {
    return name.ends_with(".qkv") ? DType::f16 : (name == "embed_tokens" ? DType::f32 : DType::bf16);
  });
  const auto dtype_of = [&](std::string_view name) {
    return d.model.graph.info(d.model.graph.find(name).value()).dtype;
  };
  EXPECT_EQ(dtype_of("layers.0.linear.qkv"), DType::f16);
  EXPECT_EQ(dtype_of("embed_tokens"), DType::f32);
  EXPECT_EQ(dtype_of("lm_head"), DType::bf16);
  EXPECT_EQ(dtype_of("layers.0.input_norm"), DType::f32);
  EXPECT_EQ(dtype_of("layers.0.linear.conv"), DType::f32);
}

TEST(Decoder, ATiedHeadIsStoredOnce) {
  HybridConfig config = tiny_config();
  config.tied = true;
  for (const ExportOptions& options : six_combinations()) {
    const DecoderGraph d = build(config, options);
    const Value table = d.model.graph.find("embed_tokens").value();
    int readers = 0;
    for (const Node& n : d.model.graph.nodes()) readers += std::ranges::count(n.inputs, table) != 0;
    EXPECT_EQ(readers, 2);
    EXPECT_FALSE(d.model.graph.find("lm_head").has_value());
  }
}

TEST(Decoder, PortsAndStatesAreTheGraphsOwn) {
  for (const ExportOptions& options : six_combinations()) {
    const DecoderGraph d = build(tiny_config(), options);
    const Graph& g = d.model.graph;
    std::set<std::string> inputs;
    std::set<std::string> outputs;
    for (const PortInfo& port : d.info.inputs) inputs.insert(port.name);
    for (const PortInfo& port : d.info.outputs) outputs.insert(port.name);
    for (const StateInfo& state : d.info.states) {
      inputs.insert(state.input);
      outputs.insert(state.output);
      const ValueInfo& past = g.info(g.find(state.input).value());
      const ValueInfo& present = g.info(g.find(state.output).value());
      EXPECT_EQ(past.dtype, state.dtype);
      EXPECT_EQ(present.dtype, state.dtype);
      EXPECT_EQ(past.shape, state.shape);
      EXPECT_EQ(present.shape == state.shape, state.kind != StateKind::growing_kv) << state.output;
    }
    EXPECT_EQ(inputs.size(), g.inputs().size());
    EXPECT_EQ(outputs.size(), g.outputs().size());
    for (const Value v : g.inputs()) EXPECT_TRUE(inputs.contains(g.info(v).name)) << g.info(v).name;
    for (const Value v : g.outputs()) EXPECT_TRUE(outputs.contains(g.info(v).name)) << g.info(v).name;
  }
}

TEST(Decoder, InputsComeInTheOrderOfTheContract) {
  ExportOptions options = combination(Layout::packed, Recurrence::gated_delta_net, Gates::raw);
  options.prune_lm_head = true;
  options.state_update_capacity = 2;
  options.num_layers = 3;
  const DecoderGraph d = build(tiny_config(), options);
  std::vector<std::string> order;
  for (const Value v : d.model.graph.inputs()) order.push_back(d.model.graph.info(v).name);
  EXPECT_THAT(
      order, ElementsAre("input_ids", "position_ids", "past_key_values.2.key", "past_key_values.2.value",
                         "past_key_values.0.conv_state", "past_key_values.1.conv_state",
                         "past_key_values.0.recurrent_state", "past_key_values.1.recurrent_state", "block_table",
                         "cumulative_sequence_lengths", "past_sequence_lengths", "attention_metadata", "logits_indices",
                         "state_update_capture_count", "state_update_active"));
  EXPECT_EQ(d.model.graph.info(d.model.graph.outputs().front()).name, "logits");
}

TEST(Decoder, TablesHoldCosinesAndSinesOfEveryPosition) {
  HybridConfig config = tiny_config();
  config.rope.inverse_frequency = {1.0, 0.25, 1e-3};
  config.rope.attention_factor = 1.25;
  ExportOptions options = six_combinations().front();
  options.max_length = 40;
  const DecoderGraph d = build(config, options);
  const Initializer* table = d.model.graph.initializer(d.model.graph.find("sin_table").value());
  ASSERT_EQ(table->shape, (Shape{40, 3}));
  std::vector<float> rows(2 * 3);
  table->table_recipe()->fill(38, std::as_writable_bytes(std::span(rows)));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double position = i < 3 ? 38.0 : 39.0;
    EXPECT_EQ(rows[i], static_cast<float>(1.25 * std::sin(position * config.rope.inverse_frequency[i % 3]))) << i;
  }
}

TEST(Decoder, OpsetsNameOurDomainOnlyWhereItIsUsed) {
  const DecoderGraph dense = build(tiny_config(), six_combinations()[0]);
  EXPECT_EQ(dense.model.opsets, (std::vector<OpsetImport>{{"", 23}, {"com.microsoft", 1}}));
  const DecoderGraph packed = build(tiny_config(), six_combinations()[3]);
  EXPECT_EQ(packed.model.opsets, (std::vector<OpsetImport>{{"", 23}, {"com.microsoft", 1}, {"sluice", 1}}));
  EXPECT_EQ(packed.model.ir_version, 10);
}

TEST(Decoder, The27BGeometryPacked) {
  ExportOptions options;
  options.target = Target::ort_cuda;
  const HybridConfig config = config_27b();
  const DecoderGraph d = build(config, options);
  const Graph& g = d.model.graph;
  const auto counts = histogram(g);
  EXPECT_EQ(counts.at("PagedAttention"), 16);
  EXPECT_EQ(counts.at("GatedDeltaNet"), 48);
  EXPECT_EQ(counts.at("VarlenCausalConvWithState"), 48);
  EXPECT_EQ(counts.at("MRotaryEmbedding"), 32);
  EXPECT_FALSE(counts.contains("GroupQueryAttention"));
  EXPECT_FALSE(counts.contains("LinearAttention"));
  EXPECT_EQ(describe(g, g.find("input_ids").value()), "i64 [num_tokens]");
  EXPECT_EQ(describe(g, g.find("position_ids").value()), "i64 [3, num_tokens]");
  EXPECT_FALSE(g.find("attention_mask").has_value());
  EXPECT_EQ(describe(g, g.find("logits").value()), "f16 [num_tokens, 248320]");
  std::map<StateKind, std::vector<std::int64_t>> layers;
  for (const StateInfo& state : d.info.states) {
    if (state.input.ends_with(".value")) continue;  // keys stand for their pair
    layers[state.kind].push_back(state.layer);
    const std::string expected = state.kind == StateKind::paged_kv ? "f16 [num_blocks, block_size, 4, 256]"
                                 : state.kind == StateKind::conv   ? "f16 [batch_size, 10240, 3]"
                                                                   : "f32 [batch_size, 48, 128, 128]";
    EXPECT_EQ(describe(g, g.find(state.input).value()), expected);
    EXPECT_EQ(describe(g, g.find(state.output).value()), expected);
  }
  EXPECT_EQ(layers.at(StateKind::paged_kv).size(), 16u);
  EXPECT_EQ(layers.at(StateKind::conv).size(), 48u);
  EXPECT_EQ(layers.at(StateKind::recurrent), layers.at(StateKind::conv));
  for (const std::int64_t layer : layers.at(StateKind::paged_kv)) EXPECT_EQ(layer % 4, 3);
  DecoderGraph placed = build(config, options);
  EXPECT_EQ(place(placed) / 1000000000, 53);  // 27 G parameters of 2 bytes
}

TEST(Decoder, The27BGeometryDense) {
  ExportOptions options;
  const DecoderGraph d = build(config_27b(), options);
  const auto counts = histogram(d.model.graph);
  EXPECT_EQ(counts.at("GroupQueryAttention"), 16);
  EXPECT_EQ(counts.at("LinearAttention"), 48);
  EXPECT_EQ(counts.at("CausalConvWithState"), 48);
  EXPECT_EQ(counts.at("LinearAttentionGate"), 48);
  EXPECT_EQ(counts.at("GatedRMSNorm"), 48);
  EXPECT_FALSE(counts.contains("PagedAttention"));
}

TEST(Builder, ANodeThatBreaksItsContractIsABug) {
  Graph graph;
  GraphBuilder g(graph);
  const Value x = graph.add_input("x", DType::f32, {extent("n"), extent(4)});
  const Value ids = graph.add_input("ids", DType::i64, {extent("n")});
  const auto what = [&](auto&& emit) -> std::string {
    try {
      emit();
    } catch (const std::logic_error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(what([&] { g.emit(kSigmoid, "a", {ids}); }), HasSubstr("input 0 (X) is i64"));
  EXPECT_THAT(what([&] { g.emit(kSigmoid, "b", {x}, {{"axis", std::int64_t{1}}}); }), HasSubstr("no attribute axis"));
  EXPECT_THAT(what([&] { g.emit(kGatedRMSNorm, "c", {x, x}); }), HasSubstr("input gate is missing"));
  EXPECT_THAT(what([&] { g.emit(kGatedRMSNorm, "d", {x, x, x}); }), HasSubstr("input 1 has shape [n, 4]"));
  EXPECT_THAT(what([&] { g.emit(kLinearAttention, "e", {x, x, x}, {}, {true, true}); }),
              HasSubstr("attribute q_num_heads of LinearAttention is missing"));
  EXPECT_THAT(what([&] { g.emit(kConcat, "f", {x, x}, {{"axis", 1.0f}}); }), HasSubstr("has another type"));
  EXPECT_THAT(what([&] { g.emit(kSigmoid, "g", {x, x}); }), HasSubstr("takes no input 1"));
  EXPECT_THAT(what([&] { g.emit(kSigmoid, "h", {x}, {}, {true, true}); }), HasSubstr("has no output 1"));
  EXPECT_EQ(what([&] { g.emit(kSigmoid, "i", {x}); }), "accepted");
}

class Packages : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("sluice_graph_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // A package whose data file is a hole: loading and checking read no weights.
  std::string write(DecoderGraph d, const std::string& name) {
    const std::filesystem::path package = folder_ / name;
    std::filesystem::create_directories(package);
    const std::uint64_t bytes = place(d);
    std::ofstream(package / "model.onnx.data").put('\0');
    std::filesystem::resize_file(package / "model.onnx.data", bytes);
    std::ofstream(package / "model.onnx", std::ios::binary) << serialize(d.model);
    return (package / "model.onnx").string();
  }

  std::filesystem::path folder_;
};

// One test, for a Python start costs a second.
TEST_F(Packages, OnnxAndItsRuntimeAgreeWithOurShapes) {
  struct Expectation {
    DecoderGraph graph;
    std::string load;  // empty: it loads on the stock CPU runtime; else part of the error
  };
  std::vector<Expectation> cases;
  const std::string ours = "not a registered function/op";
  const std::vector<std::string> loads{"", "", "", ours, ours, ours};
  for (std::size_t i = 0; i < loads.size(); ++i) {
    cases.push_back({build(tiny_config(), six_combinations()[i]), loads[i]});
  }
  ExportOptions options = six_combinations()[1];
  options.activation = DType::f16;
  options.prune_lm_head = true;
  cases.push_back({build(tiny_config(), options), ""});
  HybridConfig plain = tiny_config();
  plain.moe_layers.assign(4, false);
  plain.activation = Activation::gelu_tanh;
  plain.output_gate = OutputGateActivation::sigmoid;
  plain.attention_bias = plain.tied = true;
  plain.conv_kernel = 1;
  cases.push_back({build(plain, six_combinations()[0]), ""});
  // Packed f16 for CUDA: the one thing a CPU lacks is PagedAttention.
  options = {};
  options.target = Target::ort_cuda;
  cases.push_back({build(tiny_config(), options), "Could not find an implementation for PagedAttention(1)"});
  // Cut to its linear layers, in f32, a packed graph loads.
  options.activation = DType::f32;
  options.num_layers = 2;
  options.state_update_capacity = 2;
  options.prune_lm_head = true;
  cases.push_back({build(tiny_config(), options), ""});

  std::vector<std::string> paths;
  for (std::size_t i = 0; i < cases.size(); ++i) paths.push_back(write(cases[i].graph, std::to_string(i)));
  const auto python = testing_python::run("check_models.py", paths);
  ASSERT_EQ(python.status, 0) << "has scripts/setup run?";
  const Json results = parse_json(python.output, "check_models.py");
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    const Json& result = results.as_array("results")[i];
    EXPECT_EQ(result.at("checker", "").as_string(""), "");
    const std::string load = result.at("load", "").as_string("");
    if (!cases[i].load.empty()) {
      EXPECT_THAT(load, HasSubstr(cases[i].load));
      continue;
    }
    EXPECT_EQ(load, "");
    const Graph& g = cases[i].graph.model.graph;
    for (const Json& output : result.at("outputs", "").as_array("")) {
      std::string shape;
      for (const Json& e : output.at("shape", "").as_array("")) {
        shape += (shape.empty() ? "[" : ", ") + e.as_string("");
      }
      const std::string name = output.at("name", "").as_string("");
      EXPECT_EQ(std::string(dtype_name(g.info(g.find(name).value()).dtype)) + " " + shape + "]",
                describe(g, g.find(name).value()));
    }
  }
}

}  // namespace
}  // namespace sluice

// What holds for every operator inside a session: aliasing, concurrency, threads, constants in mapped files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "onnx/serialize.h"
#include "ops/register.h"
#include "tests/support/compare.h"
#include "tests/support/gated_delta_net_node.h"
#include "tests/support/one_node.h"
#include "tests/support/paged_attention_node.h"
#include "tests/support/random_node.h"

namespace sluice::ops {
namespace {

std::string input_name(std::size_t i) { return "i" + std::to_string(i); }
std::string output_name(std::size_t i) { return "o" + std::to_string(i); }

NodeCase conv_node() {
  Draw draw(5);
  NodeCase node;
  node.op = "VarlenCausalConvWithState";
  node.inputs = {draw.tensor({9, 33}, -1, 1), draw.tensor({33, 1, 4}, -1, 1), i32_tensor({4}, {0, 2, 2, 9}),
                 std::nullopt, draw.tensor({3, 33, 3}, -1, 1)};
  node.attributes = {{"activation", "silu"}};
  node.outputs = {OutputSpec{DType::f32, 2}, OutputSpec{DType::f32, 3}};
  return node;
}

NodeCase varlen_node() {
  const NodeCase gdn = make_node({.gate_activation = "none", .beta_activation = "none"});
  NodeCase node;
  node.op = "VarlenLinearAttention";
  node.inputs = {gdn.inputs[0], gdn.inputs[1], gdn.inputs[2], gdn.inputs[3],
                 gdn.inputs[6], gdn.inputs[4], gdn.inputs[5]};
  node.outputs = gdn.outputs;
  return node;
}

// A state: the input, and the output that may be the same buffer.
struct Alias {
  std::size_t input;
  std::size_t output;
};

// Two runs, the state fed back by binding one buffer as past and present.
Outcome run_twice_in_place(NodeCase node, const std::vector<Alias>& aliases, Level level) {
  const std::string model = serialize_case(node);
  Ort::Session session(test_environment(), model.data(), model.size(), session_options(level, 2));
  Ort::IoBinding binding(session);
  std::vector<Ort::Value> values;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (!node.inputs[i]) continue;
    values.push_back(as_value(*node.inputs[i]));
    binding.BindInput(input_name(i).c_str(), values.back());
    for (const Alias& alias : aliases) {
      if (alias.input == i) binding.BindOutput(output_name(alias.output).c_str(), values.back());
    }
  }
  binding.BindOutput("o0", Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault));
  session.Run(Ort::RunOptions{nullptr}, binding);
  session.Run(Ort::RunOptions{nullptr}, binding);
  Outcome outcome;
  for (const Ort::Value& value : binding.GetOutputValues()) outcome.outputs.push_back(from_value(value));
  std::ranges::rotate(outcome.outputs, outcome.outputs.end() - 1);  // o0 was bound last
  for (const Alias& alias : aliases) EXPECT_TRUE(same_bits(outcome[alias.output], *node.inputs[alias.input]));
  return outcome;
}

void expect_in_place_equals_apart(const NodeCase& node, const std::vector<Alias>& aliases) {
  for (const Level level : supported_levels()) {
    SCOPED_TRACE(node.op + " at " + std::string(level_name(level)));
    const Outcome first = run_node(node, level, 2);
    ASSERT_EQ(first.error, "");
    NodeCase again = node;
    for (const Alias& alias : aliases) again.inputs[alias.input] = first[alias.output];
    const Outcome second = run_node(again, level, 2);
    ASSERT_EQ(second.error, "");
    const Outcome in_place = run_twice_in_place(node, aliases, level);
    for (std::size_t i = 0; i < second.outputs.size(); ++i) {
      EXPECT_TRUE(same_bits(in_place[i], second[i])) << "output " << i;
    }
  }
}

TEST(Session, StateBoundAsPastAndPresentGivesTheBitsOfSeparateBuffers) {
  expect_in_place_equals_apart(make_node({.offsets = {0, 1, 2, 80, 80}}), {{6, 1}});
  expect_in_place_equals_apart(make_node({.offsets = {0, 1, 2, 3}}), {{6, 1}});
  expect_in_place_equals_apart(varlen_node(), {{4, 1}});
  expect_in_place_equals_apart(conv_node(), {{4, 1}});
  expect_in_place_equals_apart(make_paged({}), {{3, 1}, {4, 2}});
}

TEST(Session, ThreadsDoNotChangeABit) {
  for (const NodeCase& node : {make_node({.offsets = {0, 5, 140}, .k_heads = 4, .v_heads = 8}), varlen_node(),
                               conv_node(), make_paged({}), make_paged({.softcap = 2.0f, .rotary_dim = 8})}) {
    for (const Level level : supported_levels()) {
      const Outcome one = run_node(node, level, 1);
      ASSERT_EQ(one.error, "");
      for (const int threads : {2, 3}) {
        const Outcome more = run_node(node, level, threads);
        for (std::size_t i = 0; i < one.outputs.size(); ++i) {
          EXPECT_TRUE(same_bits(more[i], one[i])) << node.op << " at " << level_name(level);
        }
      }
    }
  }
}

TEST(Session, TwoRunsAtOnceDoNotDisturbEachOther) {
  const NodeCase node = make_node({.offsets = {0, 70, 90}, .capacity = 3});
  const std::string model = serialize_case(node);
  Ort::Session session(test_environment(), model.data(), model.size(), session_options(best_level(), 2));
  const auto work = [&](std::uint64_t seed) {
    NodeCase mine = make_node({.offsets = {0, 70, 90}, .capacity = 3}, seed);
    const Outcome alone = run_node(mine, best_level(), 2);
    EXPECT_EQ(alone.error, "");
    std::vector<std::string> names;
    std::vector<Ort::Value> values;
    for (std::size_t i = 0; i < mine.inputs.size(); ++i) {
      if (!mine.inputs[i]) continue;
      names.push_back(input_name(i));
      values.push_back(as_value(*mine.inputs[i]));
    }
    std::vector<const char*> inputs;
    for (const std::string& name : names) inputs.push_back(name.c_str());
    const char* outputs[] = {"o0", "o1", "o2"};
    for (int repeat = 0; repeat < 20; ++repeat) {
      const auto results =
          session.Run(Ort::RunOptions{nullptr}, inputs.data(), values.data(), values.size(), outputs, 3);
      for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(from_value(results[i]), alone[i]));
    }
  };
  std::thread other(work, 101);
  work(202);
  other.join();
}

TEST(Session, LevelsLiveBesideEachOther) {
  const NodeCase node = make_node({});
  std::vector<Outcome> outcomes;
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (const Level level : supported_levels()) outcomes.push_back(run_node(node, level));
  }
  const std::size_t levels = supported_levels().size();
  for (std::size_t i = 0; i < levels; ++i) EXPECT_TRUE(same_bits(outcomes[i][0], outcomes[i + levels][0]));
}

TEST(Session, ARuntimeThatIsTooOldIsRefused) {
  OrtApiBase old = *OrtGetApiBase();
  old.GetApi = [](std::uint32_t version) noexcept { return version == 1 ? OrtGetApiBase()->GetApi(1) : nullptr; };
  old.GetVersionString = []() noexcept { return "1.20.0"; };
  OrtStatus* status = register_custom_ops(nullptr, &old, Level::scalar);
  ASSERT_NE(status, nullptr);
  EXPECT_STREQ(Ort::GetApi().GetErrorMessage(status),
               "sluice operators need ONNX Runtime 1.21 or later, this is 1.20.0");
  Ort::GetApi().ReleaseStatus(status);
}

// A folder that is gone at the end of the test.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("sluice_ops_test." + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// A model of the node in `folder`, its constants in a file beside it, each at an odd offset.
std::filesystem::path save_with_data_file(const NodeCase& node, const std::filesystem::path& folder) {
  OnnxModel model = parse_model(serialize_case(node), "test");
  std::ofstream data(folder / "weights.bin", std::ios::binary);
  std::uint64_t at = 0;
  for (Initializer& initializer : model.graph.initializers()) {
    const std::vector<std::byte> bytes = std::get<std::vector<std::byte>>(initializer.data);
    at += at % 2 == 0 ? 1 : 2;
    data.seekp(static_cast<std::streamoff>(at));
    data.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    initializer.placement = {"weights.bin", at, bytes.size()};
    initializer.data = WeightRecipe{};
    at += bytes.size();
  }
  const std::filesystem::path path = folder / "model.onnx";
  std::ofstream(path, std::ios::binary) << serialize(model);
  return path;
}

Outcome run_from_file(NodeCase node, const std::filesystem::path& path) {
  Outcome outcome;
  Ort::Session session(test_environment(), path.c_str(), session_options(best_level(), 2));
  Ort::IoBinding binding(session);
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i] && !node.initializers.contains(i)) {
      binding.BindInput(input_name(i).c_str(), as_value(*node.inputs[i]));
    }
  }
  const Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  for (std::size_t i = 0; i < node.outputs.size(); ++i) binding.BindOutput(output_name(i).c_str(), memory);
  session.Run(Ort::RunOptions{nullptr}, binding);
  for (const Ort::Value& value : binding.GetOutputValues()) outcome.outputs.push_back(from_value(value));
  return outcome;
}

NodeCase with_constants(NodeCase node, std::set<std::size_t> constants) {
  node.initializers = std::move(constants);
  return node;
}

NodeCase linear_node(DType weight) {
  Draw draw(9);
  NodeCase node;
  node.domain = "sluice";
  node.op = "Linear";
  node.inputs = {draw.tensor({3, 57}, -1, 1), cast(draw.tensor({19, 57}, -1, 1), weight), draw.tensor({19}, -1, 1)};
  node.outputs = {OutputSpec{DType::f32, 2}};
  return node;
}

TEST(Session, ConstantsAtOddAddressesGiveTheBitsOfFedOnes) {
  const NodeCase nodes[] = {
      with_constants(linear_node(DType::f32), {1, 2}),
      with_constants(linear_node(DType::bf16), {1, 2}),
      with_constants(conv_node(), {1, 2}),
      with_constants(make_node({.offsets = {0, 20, 33}}), {3, 7, 8}),
      with_constants(make_node({.per_key = true, .dt_bias_per_key = true}), {3, 7, 8}),
      with_constants(make_paged({.rotary_dim = 8, .norms = true, .sink = true, .slots = true}),
                     {5, 6, 7, 8, 9, 10, 11, 12, 13}),
  };
  for (const NodeCase& node : nodes) {
    const Folder folder;
    NodeCase fed = node;
    fed.initializers.clear();
    const Outcome expected = run_node(fed, best_level(), 2);
    ASSERT_EQ(expected.error, "") << node.op;
    const Outcome found = run_from_file(node, save_with_data_file(node, folder.path()));
    for (std::size_t i = 0; i < expected.outputs.size(); ++i) {
      EXPECT_TRUE(same_bits(found[i], expected[i])) << node.op << " output " << i;
    }
  }
}

TEST(Session, MemoryBoundAtAnOddAddressIsRefused) {
  NodeCase node = conv_node();
  const std::string model = serialize_case(node);
  Ort::Session session(test_environment(), model.data(), model.size(), session_options(best_level()));
  Ort::IoBinding binding(session);
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i]) binding.BindInput(input_name(i).c_str(), as_value(*node.inputs[i]));
  }
  const Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  binding.BindOutput("o0", memory);
  const Shape shape = node.inputs[4]->shape;
  std::vector<std::byte> room(node.inputs[4]->bytes.size() + 1);
  binding.BindOutput("o1", Ort::Value::CreateTensor(memory, room.data() + 1, room.size() - 1, shape.data(),
                                                    shape.size(), ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT));
  try {
    session.Run(Ort::RunOptions{nullptr}, binding);
    FAIL() << "it ran";
  } catch (const Ort::Exception& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("output 1 (final_state): expected memory at a multiple of 4 bytes"));
  }
}

// What a node says when tensors that are listed together, as "i3" or "o1", are bound to one buffer.
std::string complaint_of_shared(const NodeCase& node, const std::vector<std::string>& shared) {
  const std::string model = serialize_case(node);
  Ort::Session session(test_environment(), model.data(), model.size(), session_options(best_level()));
  Ort::IoBinding binding(session);
  std::vector<TestTensor> inputs;
  for (const auto& input : node.inputs) inputs.push_back(input.value_or(TestTensor{}));
  const auto is_shared = [&](const std::string& name) { return std::ranges::find(shared, name) != shared.end(); };
  TestTensor buffer = inputs.at(static_cast<std::size_t>(shared.front()[1] - '0'));
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (!node.inputs[i]) continue;
    binding.BindInput(input_name(i).c_str(), as_value(is_shared(input_name(i)) ? buffer : inputs[i]));
  }
  const Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (is_shared(output_name(i))) {
      binding.BindOutput(output_name(i).c_str(), as_value(buffer));
    } else {
      binding.BindOutput(output_name(i).c_str(), memory);
    }
  }
  try {
    session.Run(Ort::RunOptions{nullptr}, binding);
  } catch (const Ort::Exception& error) {
    return error.what();
  }
  return "";
}

TEST(Session, MemoryOfAnotherTensorIsNotWrittenTo) {
  using ::testing::HasSubstr;
  const NodeCase paged = make_paged({});
  EXPECT_EQ(complaint_of_shared(paged, {"i3", "o1"}), "");
  EXPECT_THAT(
      complaint_of_shared(paged, {"i3", "o2"}),
      HasSubstr("PagedAttention node 'node': output 2 (value_cache_out): expected memory of its own, found that "
                "of input 3 (key_cache)"));
  EXPECT_THAT(complaint_of_shared(paged, {"i3", "i4", "o1"}),
              HasSubstr("output 1 (key_cache_out): expected memory of its own, found that of input 4 (value_cache)"));
  NodeCase without_outputs = paged;
  without_outputs.outputs.resize(1);
  EXPECT_THAT(complaint_of_shared(without_outputs, {"i3", "i4"}),
              HasSubstr("input 3 (key_cache): expected memory of its own, found that of input 4 (value_cache)"));
  NodeCase square = conv_node();
  EXPECT_THAT(complaint_of_shared(square, {"i0", "o0"}),
              HasSubstr("output 0 (output): expected memory of its own, found that of input 0 (input)"));
}

// The model, of which nothing tells the shape of one input. The field of the shape gets a number that protobuf skips.
std::string without_shape(std::string model, const std::string& input) {
  constexpr char kShape = 0x12;
  constexpr char kUnknown = 0x3a;
  const std::string head = std::string{'\n', static_cast<char>(input.size())} + input + '\x12';
  const std::size_t type = model.rfind(head);  // the last of them is the input's description
  SLUICE_CHECK(type != std::string::npos);
  const std::size_t shape = type + head.size() + 5;  // behind two lengths and the element type
  SLUICE_CHECK(model.at(shape) == kShape);
  model[shape] = kUnknown;
  return model;
}

TEST(Session, InputsOfUnknownShapeGiveTheBitsOfDeclaredOnes) {
  const NodeCase nodes[] = {
      make_node({.dtype = DType::f16, .gate_dtype = DType::f32, .capacity = 2}),
      make_node({.layout = QkvLayout::dense}),
      make_node({.layout = QkvLayout::fused, .dtype = DType::bf16}),
      linear_node(DType::f16),
      conv_node(),
      varlen_node(),
      make_paged({.rotary_dim = 8, .norms = true, .sink = true, .slots = true}),
  };
  for (const NodeCase& node : nodes) {
    const Folder folder;
    const std::filesystem::path path = folder.path() / "model.onnx";
    const Outcome expected = run_node(node, best_level(), 2);
    ASSERT_EQ(expected.error, "") << node.op;
    for (std::size_t hidden = 0; hidden < node.inputs.size(); ++hidden) {
      if (!node.inputs[hidden]) continue;
      SCOPED_TRACE(node.op + " without the shape of input " + std::to_string(hidden));
      std::ofstream(path, std::ios::binary) << without_shape(serialize_case(node), input_name(hidden));
      const Outcome found = run_from_file(node, path);
      for (std::size_t i = 0; i < expected.outputs.size(); ++i) EXPECT_TRUE(same_bits(found[i], expected[i]));
    }
  }
}

// The model, whose one list of integers is said to be an attribute of another type.
std::string with_type_of_list(std::string model, int type) {
  const std::string tag = "\xa0\x01";  // AttributeProto.type
  constexpr char kIntegers = 7;
  const std::size_t at = model.find(tag + kIntegers);
  SLUICE_CHECK(at != std::string::npos);
  model[at + tag.size()] = static_cast<char>(type);
  return model;
}

TEST(Session, AnAttributeOfATypeNoneAsksForIsNotTakenForAbsent) {
  constexpr int kListOfIntegers = 7;
  constexpr int kListOfStrings = 8;
  constexpr int kListOfTensors = 9;
  for (const char* name : {"scale", "chunk_size", "update_rule"}) {
    NodeCase node = make_node({});
    std::erase_if(node.attributes, [&](const Attribute& a) { return a.name == name; });
    node.attributes.push_back({name, std::vector<std::int64_t>{}});
    for (const int type : {kListOfIntegers, kListOfStrings, kListOfTensors}) {
      const std::string model = with_type_of_list(serialize_case(node), type);
      try {
        Ort::Session session(test_environment(), model.data(), model.size(), session_options(best_level()));
        FAIL() << name << " of type " << type << " was loaded";
      } catch (const Ort::Exception& error) {
        const std::string expected = std::string("GatedDeltaNet node 'node': attribute ") + name + ": expected a";
        EXPECT_THAT(error.what(), ::testing::HasSubstr(expected)) << type;
      }
    }
  }
}

// Resident memory that no file backs, in bytes.
std::int64_t anonymous_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  }
  return 0;
}

TEST(Session, AConstantWeightIsReadFromItsFileWithoutACopy) {
  constexpr std::int64_t kBytes = 256 << 20;
  const Folder folder;
  NodeCase node = with_constants(linear_node(DType::bf16), {1});
  node.inputs.resize(2);
  node.inputs[0] = make_tensor(DType::f32, {1, 4096});
  OnnxModel model{.opsets = {{"", 22}, {"sluice", 1}}, .producer_version = "", .graph = Graph()};
  const Value x = model.graph.add_input("i0", DType::f32, {extent("rows"), extent(4096)});
  const Value weight = model.graph.add_initializer("weight", DType::bf16, {kBytes / 2 / 4096, 4096},
                                                   decltype(Initializer::data)(WeightRecipe{}));
  model.graph.initializers()[0].placement = {"weights.bin", 0, kBytes};
  const Value y = model.graph.add_value("o0", DType::f32, {extent("rows"), extent(kBytes / 2 / 4096)});
  sluice::Node linear;
  linear.name = "node";
  linear.domain = "sluice";
  linear.op = "Linear";
  linear.inputs = {x, weight};
  linear.outputs = {y};
  model.graph.add_node(std::move(linear));
  model.graph.add_output(y);
  std::ofstream(folder.path() / "model.onnx", std::ios::binary) << serialize(model);
  std::ofstream(folder.path() / "weights.bin").close();
  std::filesystem::resize_file(folder.path() / "weights.bin", kBytes);

  const std::int64_t before = anonymous_memory();
  const Outcome outcome = run_from_file(node, folder.path() / "model.onnx");
  EXPECT_EQ(outcome[0].shape, (Shape{1, kBytes / 2 / 4096}));
  // The session itself, its threads and the output: far from the weight's 256 MiB.
  EXPECT_LT(anonymous_memory() - before, kBytes / 8);
}

}  // namespace
}  // namespace sluice::ops

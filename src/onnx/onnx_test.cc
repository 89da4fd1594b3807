#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>

#include "base/error.h"
#include "base/onnx_type.h"
#include "onnx/serialize.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  std::vector<std::byte> out(values.size() * sizeof(float));
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

// y = Mul(x [n, 2], scale [2]); z = Add(y, offset [1, 2], whose bytes are in data.bin)
OnnxModel small_model() {
  OnnxModel model;
  model.opsets = {{"", 23}, {"com.microsoft", 1}};
  Graph& graph = model.graph;
  const Value x = graph.add_input("x", DType::f32, {extent("n"), extent(2)});
  const Value scale = graph.add_initializer("scale", DType::f32, {2}, bytes_of({1.5f, -2.0f}));
  const Value offset = graph.add_initializer("offset", DType::f32, {1, 2}, WeightRecipe{{"embed"}, {}});
  graph.initializers().back().placement = {"data.bin", 128, 8};
  const Value y = graph.add_value("y", DType::f32, {extent("n"), extent(2)});
  const Value z = graph.add_value("z", DType::f32, {extent("n"), extent(2)});
  graph.add_node({"first", "", "Mul", {x, scale}, {y}, {}});
  graph.add_node(
      {"second",
       "com.microsoft",
       "Made",
       {y, {}, offset},
       {{}, z},
       {{"i", std::int64_t{-3}}, {"f", 0.5f}, {"s", std::string("text")}, {"v", std::vector<std::int64_t>{4, 5}}}});
  graph.add_output(z);
  return model;
}

std::string error_of(const std::string& bytes) {
  try {
    parse_model(bytes, "m.onnx");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Graph, RefusesUnknownInputsDoubleNamesAndDoubleDefinitions) {
  Graph graph;
  const Value x = graph.add_input("x", DType::f32, {});
  EXPECT_THROW(graph.add_input("x", DType::f32, {}), std::logic_error);
  const Value y = graph.add_value("y", DType::f32, {});
  const Value z = graph.add_value("z", DType::f32, {});
  EXPECT_THROW(graph.add_node({"early", "", "Neg", {y}, {z}, {}}), std::logic_error);
  graph.add_node({"node", "", "Neg", {x}, {y}, {}});
  EXPECT_THROW(graph.add_node({"again", "", "Neg", {x}, {y}, {}}), std::logic_error);
  EXPECT_THROW(graph.add_node({"node", "", "Neg", {x}, {z}, {}}), std::logic_error);
  EXPECT_THROW(graph.add_output(z), std::logic_error);
}

TEST(Graph, ARenamedValueIsFoundByItsNewNameAlone) {
  Graph graph;
  const Value x = graph.add_input("x", DType::f32, {});
  graph.rename(x, "present");
  EXPECT_EQ(graph.find("present"), x);
  EXPECT_FALSE(graph.find("x").has_value());
}

TEST(Serialize, TheSameGraphGivesTheSameBytes) { EXPECT_EQ(serialize(small_model()), serialize(small_model())); }

TEST(Serialize, WhatIsReadBackIsWhatWasWritten) {
  const OnnxModel written = small_model();
  const OnnxModel read = parse_model(serialize(written), "m.onnx");
  EXPECT_EQ(read.ir_version, 10);
  EXPECT_EQ(read.opsets, written.opsets);
  ASSERT_EQ(read.graph.nodes().size(), 2u);
  const Node& node = read.graph.nodes()[1];
  EXPECT_EQ(node.attributes, written.graph.nodes()[1].attributes);
  EXPECT_FALSE(node.input(1));
  EXPECT_FALSE(node.output(0));
  EXPECT_EQ(read.graph.info(node.output(1)).name, "z");
  const Value y = read.graph.find("y").value();
  EXPECT_EQ(read.graph.info(y).shape, (Extents{extent("n"), extent(2)}));
  const Initializer* offset = read.graph.initializer(read.graph.find("offset").value());
  ASSERT_NE(offset, nullptr);
  EXPECT_TRUE(offset->is_external());
  EXPECT_EQ(offset->placement, (Placement{"data.bin", 128, 8}));
  const Initializer* scale = read.graph.initializer(read.graph.find("scale").value());
  EXPECT_EQ(std::get<0>(scale->data), bytes_of({1.5f, -2.0f}));
  EXPECT_EQ(serialize(read), serialize(written));
}

TEST(Serialize, AnExternalInitializerWithoutAPlaceIsABug) {
  OnnxModel model = small_model();
  model.graph.initializers().back().placement = {};
  EXPECT_THROW(serialize(model), std::logic_error);
  model.graph.initializers().back().placement = {"data.bin", 0, 7};
  EXPECT_THROW(serialize(model), std::logic_error);
}

TEST(Serialize, EveryElementTypeHasItsNumberBothWays) {
  for (const DType dtype :
       {DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2, DType::i64, DType::i32,
        DType::i16, DType::i8, DType::u64, DType::u32, DType::u16, DType::u8, DType::boolean}) {
    EXPECT_EQ(dtype_of_onnx(onnx_element_type(dtype)), dtype) << dtype_name(dtype);
  }
  EXPECT_FALSE(dtype_of_onnx(8).has_value());  // strings
}

TEST(Parse, BytesThatAreNoModelAreRefused) {
  EXPECT_THAT(error_of("not a model"), HasSubstr("m.onnx: not an ONNX model"));
  EXPECT_THAT(error_of(""), HasSubstr("not an ONNX model"));
}

TEST(Parse, ACutModelNeverGetsThrough) {
  const std::string whole = serialize(small_model());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    try {
      const OnnxModel model = parse_model(std::string_view(whole).substr(0, length), "m.onnx");
      EXPECT_LE(model.graph.nodes().size(), 2u);  // protobuf may end between two fields
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("m.onnx"));
    }
  }
}

TEST(Parse, ChangedBytesGiveAnErrorOrAModelButNeverABug) {
  const std::string whole = serialize(small_model());
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int change : {1, 0x80, 0xff}) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ change);
      EXPECT_NO_FATAL_FAILURE(error_of(bytes));
    }
  }
}

}  // namespace
}  // namespace sluice

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <variant>

#include "base/error.h"
#include "opset/operators.h"
#include "opset/shape_context.h"

namespace sluice {
namespace {

// A node written out by hand. An empty optional is an absent input.
class Node final : public ShapeContext {
 public:
  using Input = std::optional<Extents>;
  Node(const OperatorSpec& spec, std::vector<Input> inputs, std::size_t outputs)
      : spec_(spec), inputs_(std::move(inputs)), outputs_(outputs) {}

  Node& set(std::string name, std::variant<std::int64_t, std::string, std::vector<std::int64_t>> value) {
    attributes_[std::move(name)] = std::move(value);
    return *this;
  }
  Node& contents(std::size_t index, Extents values) {
    contents_[index] = std::move(values);
    return *this;
  }
  // The output shapes, spelled out.
  std::vector<std::string> infer() {
    spec_.infer(*this);
    std::vector<std::string> out;
    for (const Extents& shape : outputs_) out.push_back(to_string(shape));
    return out;
  }

  std::size_t input_count() const override { return inputs_.size(); }
  std::size_t output_count() const override { return outputs_.size(); }
  bool has_input(std::size_t index) const override { return index < inputs_.size() && inputs_[index].has_value(); }
  bool has_output(std::size_t index) const override { return index < outputs_.size(); }
  const Extents& input_shape(std::size_t index) const override { return inputs_.at(index).value(); }
  std::optional<Extents> input_contents(std::size_t index) const override {
    const auto found = contents_.find(index);
    return found == contents_.end() ? std::nullopt : std::optional(found->second);
  }
  std::int64_t integer(std::string_view name) const override {
    const auto found = attributes_.find(name);
    return found == attributes_.end() ? spec_.attribute(name)->integer : std::get<0>(found->second);
  }
  std::string text(std::string_view name) const override {
    const auto found = attributes_.find(name);
    return found == attributes_.end() ? std::string(spec_.attribute(name)->text) : std::get<1>(found->second);
  }
  std::vector<std::int64_t> integers(std::string_view name) const override {
    return std::get<2>(attributes_.find(name)->second);
  }
  bool has_attribute(std::string_view name) const override { return attributes_.contains(name); }
  void set_output_shape(std::size_t index, Extents shape) override { outputs_.at(index) = std::move(shape); }
  void set_output_contents(std::size_t, Extents values) override { output_contents = std::move(values); }

  Extents output_contents;

 private:
  const OperatorSpec& spec_;
  std::vector<Input> inputs_;
  std::vector<Extents> outputs_;
  std::map<std::size_t, Extents> contents_;
  std::map<std::string, std::variant<std::int64_t, std::string, std::vector<std::int64_t>>, std::less<>> attributes_;
};

// "batch,4,?" -> extents
Extents e(std::string_view text) {
  Extents out;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string part(text.substr(0, comma));
    out.push_back(part.find_first_not_of("0123456789") == std::string::npos ? extent(std::stoll(part)) : extent(part));
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  return out;
}

using Shapes = std::vector<std::string>;
using ::testing::HasSubstr;

std::string error_of(Node node) {
  try {
    node.infer();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Extents, MultiplyAndDivideSymbolBySymbol) {
  const Extent product = multiply(extent("sequence"), multiply(extent(8), extent("batch")));
  EXPECT_EQ(to_string(product), "8*batch*sequence");
  EXPECT_EQ(to_string(divide(product, extent("sequence")).value()), "8*batch");
  EXPECT_EQ(to_string(divide(product, product).value()), "1");
  EXPECT_FALSE(divide(product, extent(3)).has_value());
  EXPECT_FALSE(divide(product, extent("tokens")).has_value());
  EXPECT_THROW(multiply(extent(std::int64_t{1} << 40), extent(std::int64_t{1} << 40)), Error);
  EXPECT_EQ(to_string(add(extent("batch"), extent(1))), "batch + 1");
}

TEST(GatedDeltaNetShapes, PackedTokensWithStateAndCapsule) {
  Node node(kGatedDeltaNet,
            {e("tokens,16,128"), e("tokens,16,128"), e("tokens,48,64"), e("offsets"), e("tokens,48"), e("tokens,48"),
             e("batch,48,64,128"), e("48"), e("48"), e("batch"), e("1")},
            3);
  node.set("state_update_capacity", 7);
  EXPECT_EQ(node.infer(), (Shapes{"[tokens, 48, 64]", "[batch, 48, 64, 128]",
                                  "[batch, " + std::to_string(7 * (48 + 16 * 128 + 48 * 64)) + "]"}));
}

TEST(GatedDeltaNetShapes, OneTensorOfQueryKeyAndValue) {
  Node node(kGatedDeltaNet, {e("tokens,40"), {}, {}, e("3"), e("tokens,2"), e("tokens,2"), e("2,2,4,8")}, 2);
  EXPECT_EQ(node.infer(), (Shapes{"[tokens, 2, 4]", "[2, 2, 4, 8]"}));
  EXPECT_THAT(error_of(Node(kGatedDeltaNet, {e("tokens,41"), {}, {}, e("3"), {}, {}, e("2,2,4,8")}, 2)),
              HasSubstr("holds no query and key heads"));
}

TEST(GatedDeltaNetShapes, DenseRowsAndPerKeyDecay) {
  Node node(kGatedDeltaNet,
            {e("batch,seq,2,8"),
             e("batch,seq,2,8"),
             e("batch,seq,4,6"),
             {},
             e("batch,seq,4,8"),
             e("batch,seq,4"),
             {},
             {},
             {},
             e("batch")},
            3);
  node.set("state_update_capacity", 1);
  EXPECT_EQ(node.infer(), (Shapes{"[batch, seq, 4, 6]", "[batch, 4, 6, 8]", "[batch, 72]"}));
}

TEST(GatedDeltaNetShapes, RefuseWhatDoesNotFit) {
  const auto with = [](Node::Input key, Node::Input decay, Node::Input state) {
    return Node(kGatedDeltaNet,
                {e("t,2,8"), std::move(key), e("t,4,6"), e("o"), std::move(decay), e("t,4"), std::move(state)}, 2);
  };
  EXPECT_THAT(error_of(with(e("t,2,7"), e("t,4"), e("b,4,6,8"))), HasSubstr("input 1 has shape [t, 2, 7]"));
  EXPECT_THAT(error_of(with(e("t,2,8"), e("t,3"), e("b,4,6,8"))), HasSubstr("input 4 has shape [t, 3]"));
  EXPECT_THAT(error_of(with(e("t,2,8"), e("t,4"), e("b,4,8,6"))), HasSubstr("expected [b, 4, 6, 8]"));
  EXPECT_THAT(error_of(with({}, e("t,4"), e("b,4,6,8"))), HasSubstr("come together"));
  Node nine = with(e("t,2,8"), e("t,4"), e("b,4,6,8"));
  nine.set("state_update_capacity", 9);
  EXPECT_THAT(error_of(nine), HasSubstr("expected 0..8"));
}

TEST(LinearAttentionShapes, KeyMajorStateAndTheLargerHeadCount) {
  Node node(kLinearAttention, {e("b,s,256"), e("b,s,256"), e("b,s,384"), e("b,6,64,64"), e("b,s,6"), e("b,s,6")}, 2);
  node.set("q_num_heads", 4).set("kv_num_heads", 6);
  EXPECT_EQ(node.infer(), (Shapes{"[b, s, 384]", "[b, 6, 64, 64]"}));
  Node odd(kLinearAttention, {e("b,s,250"), e("b,s,250"), e("b,s,384")}, 2);
  odd.set("q_num_heads", 4).set("kv_num_heads", 6);
  EXPECT_THAT(error_of(odd), HasSubstr("not a multiple of q_num_heads 4"));
}

TEST(VarlenLinearAttentionShapes, ValueMajorStateAndCheckpoints) {
  Node node(kVarlenLinearAttention, {e("n,2,8"), e("n,2,8"), e("n,4,6"), e("o"), e("b,4,6,8"), e("n,4"), e("n,1")}, 3);
  EXPECT_EQ(node.infer(), (Shapes{"[n, 4, 6]", "[b, 4, 6, 8]", "[0, b, 4, 6, 8]"}));
}

TEST(ConvolutionShapes, StateIsTheKernelLessOne) {
  Node packed(kVarlenCausalConvWithState, {e("n,96"), e("96,1,4"), e("o"), {}, e("b,96,3"), e("b")}, 3);
  packed.set("state_update_capacity", 2);
  EXPECT_EQ(packed.infer(), (Shapes{"[n, 96]", "[b, 96, 3]", "[b, 2, 96]"}));
  Node dense(kCausalConvWithState, {e("b,96,s"), e("96,1,1"), {}, e("b,96,0")}, 2);
  EXPECT_EQ(dense.infer(), (Shapes{"[b, 96, s]", "[b, 96, 0]"}));
  EXPECT_THAT(error_of(Node(kVarlenCausalConvWithState, {e("n,96"), e("96,1,4"), e("o"), {}, e("b,96,4")}, 2)),
              HasSubstr("expected [b, 96, 3]"));
  EXPECT_THAT(error_of(Node(kVarlenCausalConvWithState, {e("n,96"), e("96,1,0"), e("o"), {}, e("b,96,3")}, 2)),
              HasSubstr("no taps"));
}

TEST(AttentionShapes, CachesKeepTheirShape) {
  std::vector<Node::Input> inputs{e("n,64"),           e("n,32"), e("n,32"), e("blocks,16,2,16"),
                                  e("blocks,16,2,16"), e("o"),    e("b"),    e("b,m")};
  Node paged(kPagedAttention, inputs, 3);
  paged.set("num_heads", 4).set("kv_num_heads", 2);
  EXPECT_EQ(paged.infer(), (Shapes{"[n, 64]", "[blocks, 16, 2, 16]", "[blocks, 16, 2, 16]"}));
  Node grown(kGroupQueryAttention,
             {e("b,s,64"), e("b,s,32"), e("b,s,32"), e("b,2,past,16"), e("b,2,past,16"), e("b"), e("")}, 3);
  grown.set("num_heads", 4).set("kv_num_heads", 2);
  EXPECT_EQ(grown.infer(),
            (Shapes{"[b, s, 64]", "[b, 2, total_sequence_length, 16]", "[b, 2, total_sequence_length, 16]"}));
}

TEST(SluiceShapes, LinearAndExperts) {
  EXPECT_EQ(Node(kSluiceLinear, {e("b,s,8"), e("5,8"), e("5")}, 1).infer(), Shapes{"[b, s, 5]"});
  EXPECT_THAT(error_of(Node(kSluiceLinear, {e("b,8"), e("5,9")}, 1)), HasSubstr("last extents differ"));
  EXPECT_EQ(Node(kSluiceMoE, {e("t,8"), e("t,4"), e("4,12,8"), e("4,8,6")}, 1).infer(), Shapes{"[t, 8]"});
  EXPECT_EQ(Node(kSluiceMoE, {e("t,8"), e("t,4"), e("4,6,8"), e("4,8,6"), e("4,6,8")}, 1).infer(), Shapes{"[t, 8]"});
  EXPECT_THAT(error_of(Node(kSluiceMoE, {e("t,8"), e("t,4"), e("4,6,8"), e("4,8,6")}, 1)), HasSubstr("input 2"));
}

TEST(StandardShapes, ReshapeFillsInTheWildcard) {
  Node node(kReshape, {e("b,s,24"), e("2")}, 1);
  node.contents(1, {extent(-1), extent(24)});
  EXPECT_EQ(node.infer(), Shapes{"[b*s, 24]"});
  Node back(kReshape, {e("b*s,24"), e("3")}, 1);
  back.contents(1, {extent("b"), extent("s"), extent(-1)});
  EXPECT_EQ(back.infer(), Shapes{"[b, s, 24]"});
  Node odd(kReshape, {e("b,25"), e("2")}, 1);
  odd.contents(1, {extent(0), extent(-1), extent(4)});
  EXPECT_THAT(error_of(odd), HasSubstr("does not reshape"));
}

TEST(StandardShapes, ShapeAndConcatPassTheirContentsOn) {
  Node shape(kShape, {e("b,s,24")}, 1);
  shape.set("end", 2);
  EXPECT_EQ(shape.infer(), Shapes{"[2]"});
  EXPECT_EQ(shape.output_contents, e("b,s"));
  Node concat(kConcat, {e("2"), e("1")}, 1);
  concat.set("axis", 0).contents(0, e("b,s")).contents(1, {extent(-1)});
  EXPECT_EQ(concat.infer(), Shapes{"[3]"});
  EXPECT_EQ(concat.output_contents, (Extents{extent("b"), extent("s"), extent(-1)}));
}

TEST(StandardShapes, ProductsBroadcastsAndParts) {
  Node gemm(kGemm, {e("t,8"), e("5,8"), e("5")}, 1);
  gemm.set("transB", 1);
  EXPECT_EQ(gemm.infer(), Shapes{"[t, 5]"});
  EXPECT_EQ(Node(kMul, {e("b,1,4"), e("s,1")}, 1).infer(), Shapes{"[b, s, 4]"});
  EXPECT_THAT(error_of(Node(kMul, {e("b,3"), e("b,4")}, 1)), HasSubstr("do not broadcast"));
  Node split(kSplit, {e("t,10"), e("2")}, 2);
  split.set("axis", -1).contents(1, e("4,6"));
  EXPECT_EQ(split.infer(), (Shapes{"[t, 4]", "[t, 6]"}));
  Node gather(kGather, {e("b,s,4"), e("")}, 1);
  gather.set("axis", 1);
  EXPECT_EQ(gather.infer(), Shapes{"[b, 4]"});
}

}  // namespace
}  // namespace sluice

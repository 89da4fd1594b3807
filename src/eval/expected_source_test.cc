#include "eval/expected_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint_testing.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TempFolder;
using testing::TestTensor;

template <typename T>
TestTensor tensor(std::string name, std::string dtype, Shape shape, const std::vector<T>& values) {
  return {std::move(name), std::move(dtype), std::move(shape),
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T))};
}

TestTensor ids(std::string name, const std::vector<std::int64_t>& values) {
  return tensor(std::move(name), "I64", {static_cast<std::int64_t>(values.size())}, values);
}

class ExpectedFile : public ::testing::Test {
 protected:
  std::unique_ptr<ExpectedSource> open(const std::vector<TestTensor>& tensors) {
    folder_.write("expected.safetensors", testing::safetensors_bytes(tensors));
    return open_expected(folder_ / "expected.safetensors");
  }
  std::string refusal(const std::vector<TestTensor>& tensors) {
    return error_of([&] { open(tensors); });
  }
  // Rows delivered for all positions of a sequence, fed in one piece.
  static std::vector<std::pair<std::int64_t, std::vector<float>>> rows(LogitsSource& source, const TokenSequence& s) {
    std::vector<std::pair<std::int64_t, std::vector<float>>> out;
    source.start(s);
    source.feed(static_cast<std::int64_t>(s.ids.size()), [&](std::int64_t position, std::span<const float> logits) {
      out.emplace_back(position, std::vector(logits.begin(), logits.end()));
    });
    return out;
  }
  TempFolder folder_;
};

TEST_F(ExpectedFile, gives_the_rows_it_knows_preferring_float64) {
  const auto source = open({ids("seq0.input_ids", {1, 0, 1}), ids("seq0.logits_pos", {0, 2}),
                            tensor<float>("seq0.logits", "F32", {2, 2}, {9, 9, 9, 9}),
                            tensor<double>("seq0.logits_f64", "F64", {2, 2}, {1, 2, 3, 4})});
  ASSERT_EQ(source->sequences().size(), 1u);
  EXPECT_EQ(source->vocab(), 2);
  EXPECT_THAT(source->sequences()[0].positions, ElementsAre(0, 2));
  const auto found = rows(*source, source->sequences()[0]);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[1].first, 2);
  EXPECT_THAT(found[1].second, ElementsAre(3, 4));
}

TEST_F(ExpectedFile, without_positions_has_all_and_reads_narrow_dtypes) {
  const auto source = open({tensor<std::int32_t>("seq0.input_ids", "I32", {2}, {0, 1}),
                            tensor<std::uint16_t>("seq0.logits", "BF16", {2, 2}, {0x3f80, 0x4000, 0xbf80, 0x0000})});
  const auto found = rows(*source, source->sequences()[0]);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_THAT(found[0].second, ElementsAre(1, 2));
  EXPECT_THAT(found[1].second, ElementsAre(-1, 0));
}

TEST_F(ExpectedFile, continues_a_sequence_with_its_greedy_tokens) {
  const auto source =
      open({ids("seq0.input_ids", {1}), tensor<float>("seq0.logits", "F32", {1, 2}, {1, 2}),
            ids("seq0.greedy_ids", {1, 0, 1}), tensor<float>("seq0.greedy_logits", "F32", {3, 2}, {1, 2, 6, 5, 7, 8})});
  EXPECT_THAT(source->greedy(std::vector<std::int64_t>{1}, 2), ElementsAre(1, 0));
  EXPECT_THAT(source->greedy(std::vector<std::int64_t>{1}, 9), ElementsAre(1, 0, 1));
  EXPECT_TRUE(source->greedy(std::vector<std::int64_t>{0}, 2).empty());
  const auto found = rows(*source, {"continued", {1, 1, 0}, {0, 1, 2}, {1, 0, 1}});
  ASSERT_EQ(found.size(), 3u);
  EXPECT_THAT(found[1].second, ElementsAre(6, 5));
  EXPECT_THAT(found[2].second, ElementsAre(7, 8));
  EXPECT_TRUE(rows(*source, {"another", {1, 0, 0}, {0, 1, 2}, {}}).empty());
}

TEST_F(ExpectedFile, names_what_is_missing) {
  EXPECT_THAT(refusal({ids("tokens", {1})}), HasSubstr("no tensor seq0.input_ids"));
  EXPECT_THAT(refusal({ids("seq0.input_ids", {1})}), HasSubstr("seq0.logits"));
  EXPECT_THAT(error_of([&] { open_expected(folder_ / "none.safetensors"); }), HasSubstr("none.safetensors"));
}

TEST_F(ExpectedFile, refuses_what_does_not_fit_by_name) {
  const TestTensor two = ids("seq0.input_ids", {1, 0});
  const auto logits = [](Shape shape, std::vector<float> values) {
    return tensor<float>("seq0.logits", "F32", std::move(shape), values);
  };
  EXPECT_THAT(refusal({two, logits({3, 2}, {0, 0, 0, 0, 0, 0})}), HasSubstr("[3, 2], expected [2, "));
  EXPECT_THAT(refusal({two, logits({4}, {0, 0, 0, 0})}), HasSubstr("seq0.logits has shape [4]"));
  EXPECT_THAT(refusal({two, logits({2, 0}, {})}), HasSubstr("[2, 0]"));
  EXPECT_THAT(refusal({two, ids("seq0.logits", {0, 0})}), HasSubstr("seq0.logits"));
  EXPECT_THAT(refusal({two, tensor<std::int64_t>("seq0.logits", "I64", {2, 1}, {0, 0})}), HasSubstr("i64"));
  EXPECT_THAT(refusal({two, logits({2, 2}, {0, 0, 0, std::numeric_limits<float>::quiet_NaN()})}),
              HasSubstr("seq0.logits[1, 1] is not finite"));
  EXPECT_THAT(refusal({two, logits({2, 1}, {0, 0})}), HasSubstr("seq0.input_ids[0] is 1, outside the 1 entries"));
  EXPECT_THAT(refusal({two, logits({2, 2}, {0, 0, 0, 0}), ids("seq0.logits_pos", {1, 0})}), HasSubstr("must ascend"));
  EXPECT_THAT(refusal({two, logits({2, 2}, {0, 0, 0, 0}), ids("seq0.logits_pos", {0, 2})}),
              HasSubstr("seq0.logits_pos[1] is 2, outside the 2 tokens"));
  EXPECT_THAT(refusal({ids("seq0.input_ids", {}), logits({0, 2}, {})}), HasSubstr("seq0.input_ids is empty"));
  EXPECT_THAT(refusal({two, logits({2, 2}, {0, 0, 0, 0}), ids("seq0.greedy_ids", {-1})}),
              HasSubstr("seq0.greedy_ids[0] is -1"));
  EXPECT_THAT(refusal({tensor<float>("seq0.input_ids", "F32", {2}, {0, 0}), logits({2, 2}, {0, 0, 0, 0})}),
              HasSubstr("seq0.input_ids has dtype f32"));
  EXPECT_THAT(refusal({tensor<std::int64_t>("seq0.input_ids", "I64", {1, 2}, {0, 0}), logits({2, 2}, {0, 0, 0, 0})}),
              HasSubstr("one dimension"));
}

TEST_F(ExpectedFile, binds_all_sequences_to_one_vocabulary) {
  EXPECT_THAT(refusal({ids("seq0.input_ids", {0}), tensor<float>("seq0.logits", "F32", {1, 2}, {0, 0}),
                       ids("seq1.input_ids", {0}), tensor<float>("seq1.logits", "F32", {1, 3}, {0, 0, 0})}),
              HasSubstr("seq1.logits has shape [1, 3], expected [1, 2]"));
}

TEST_F(ExpectedFile, refuses_sequences_behind_a_gap) {
  const TestTensor first = ids("seq0.input_ids", {1}), rows = tensor<float>("seq0.logits", "F32", {1, 2}, {1, 2});
  EXPECT_THAT(refusal({first, rows, ids("seq2.input_ids", {1})}),
              HasSubstr("seq2.input_ids is there, but seq1.input_ids is not"));
  EXPECT_THAT(refusal({first, rows, tensor<float>("seq1.logits", "F32", {1, 2}, {1, 2})}),
              HasSubstr("seq1.logits is there, but seq1.input_ids is not"));
  for (const char* other : {"sequence.length", "seqx.input_ids", "seq", "seq1", "split.logits", "seq-1.x"})
    EXPECT_NO_THROW(open({first, rows, ids(other, {1})})) << other;
}

}  // namespace
}  // namespace sluice

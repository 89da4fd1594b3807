#include "eval/procedures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "eval/fake_source.h"

namespace sluice {
namespace {

using testing::Each;
using testing::ElementsAre;

TokenSequence tokens(std::int64_t count) {
  TokenSequence s{"s", std::vector<std::int64_t>(static_cast<std::size_t>(count)), positions_to_compare(count), {}};
  std::iota(s.ids.begin(), s.ids.end(), 1);
  return s;
}

// Logits that depend on every token seen and on their number.
std::vector<float> hash_logits(std::span<const std::int64_t> seen) {
  std::vector<float> row(5);
  for (std::size_t i = 0; i < seen.size(); ++i) row[(i * 7 + static_cast<std::size_t>(seen[i])) % 5] += 0.125f;
  return row;
}

TEST(Pieces, cover_the_sequence_and_none_is_empty) {
  for (const Procedure& p : procedures(8)) {
    for (const std::int64_t length : {1, 2, 5, 6, 65, 130, 256, 257, 1000}) {
      const auto cut = pieces(p.feeding, tokens(length));
      EXPECT_EQ(std::accumulate(cut.begin(), cut.end(), std::int64_t{0}), length) << p.name << " " << length;
      EXPECT_THAT(cut, Each(testing::Gt(0))) << p.name << " " << length;
    }
  }
}

TEST(Pieces, are_what_the_names_say) {
  EXPECT_THAT(pieces(Feeding::whole, tokens(65)), ElementsAre(65));
  EXPECT_THAT(pieces(Feeding::cut, tokens(65)), ElementsAre(5, 1, 17, 3, 39));
  EXPECT_THAT(pieces(Feeding::token_by_token, tokens(3)), ElementsAre(1, 1, 1));
  const auto single = pieces(Feeding::token_by_token, tokens(300));
  EXPECT_EQ(single.size(), 65u);
  EXPECT_EQ(single.front(), 236);
  TokenSequence greedy = tokens(6);
  greedy.positions = {3, 4, 5};
  EXPECT_THAT(pieces(Feeding::greedy, greedy), ElementsAre(4, 1, 1));
}

TEST(PositionsToCompare, are_all_of_a_short_sequence_and_bounded_for_a_long_one) {
  EXPECT_THAT(positions_to_compare(3), ElementsAre(0, 1, 2));
  EXPECT_EQ(positions_to_compare(256).size(), 256u);
  for (const std::int64_t length : {257, 400, 5000, 262144}) {
    const auto positions = positions_to_compare(length);
    EXPECT_LE(positions.size(), 384u) << length;
    EXPECT_GE(positions.size(), 200u) << length;
    EXPECT_TRUE(std::ranges::is_sorted(positions));
    EXPECT_EQ(positions.front(), 0);
    EXPECT_EQ(positions.back(), length - 1);
  }
}

TEST(ProcedureComparison, of_a_source_with_itself_finds_nothing) {
  for (const Procedure& p : procedures(4)) {
    FakeSource a(5, hash_logits), b(5, hash_logits);
    const TokenSequence prompt = tokens(70);
    ProcedureComparison c(p);
    c.add(a, b, p.feeding == Feeding::greedy ? greedy_sequence(a, prompt, 4) : prompt);
    const LogitsDifference d = c.logits().result(0);
    EXPECT_EQ(d.rows, p.feeding == Feeding::greedy ? 4 : 70) << p.name;
    EXPECT_EQ(d.max_abs, 0) << p.name;
    EXPECT_EQ(d.disagreed, 0) << p.name;
    EXPECT_EQ(a.pieces, b.pieces) << p.name;
  }
}

TEST(ProcedureComparison, finds_a_source_that_forgets_across_pieces) {
  FakeSource whole(5, hash_logits);
  FakeSource forgetful(5, [](std::span<const std::int64_t> seen) { return hash_logits(seen.last(1)); });
  ProcedureComparison c(procedures(0)[1]);
  c.add(whole, forgetful, tokens(10));
  EXPECT_GT(c.logits().result(0).max_abs, 0);
  EXPECT_EQ(c.logits().result(0).first_divergence->position, 1);
}

TEST(ProcedureComparison, feeds_no_more_than_the_logits_memory_allows) {
  constexpr std::int64_t kVocab = 6 << 20;  // 24 MiB a row: two rows fit
  const auto zeros = [](std::span<const std::int64_t>) { return std::vector<float>(kVocab); };
  FakeSource a(kVocab, zeros), b(kVocab, zeros);
  ProcedureComparison c(procedures(0)[0]);
  TokenSequence five = tokens(5);
  five.positions = {2};
  c.add(a, b, five);
  EXPECT_THAT(b.pieces, ElementsAre(2, 2, 1));
  EXPECT_EQ(c.largest_piece(), 2);
  EXPECT_EQ(c.logits().result(0).rows, 1);
}

TEST(ProcedureComparison, keeps_the_worst_sequence_of_each_state) {
  FakeSource a(5, hash_logits), b(5, hash_logits);
  ProcedureComparison c(procedures(0)[0]);
  for (const float off : {0.25f, 0.5f, 0.125f}) {
    a.state_values = {{0, "conv", {2}, {1, 2}}, {1, "key", {1}, {1}}};
    b.state_values = {{0, "conv", {2}, {1, 2 + off}}, {1, "key", {1}, {1}}};
    c.add(a, b, tokens(4));
  }
  const auto states = c.states();
  ASSERT_EQ(states.size(), 2u);
  EXPECT_EQ(states[0].max_abs, 0.5);
  EXPECT_EQ(states[0].scale, 2.0);
  EXPECT_FALSE(states[0].within());
  EXPECT_TRUE(states[1].within());
}

TEST(GreedySequence, is_the_prompt_and_all_but_the_last_token_after_it) {
  FakeSource a(5, hash_logits);
  const TokenSequence prompt = tokens(3);
  const TokenSequence s = greedy_sequence(a, prompt, 4);
  EXPECT_EQ(s.ids.size(), 6u);
  EXPECT_THAT(s.positions, ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(s.next_tokens.size(), 4u);
  EXPECT_EQ(s.ids[3], s.next_tokens[0]);
  EXPECT_EQ(s.next_tokens[0], argmax(hash_logits(prompt.ids)));
  EXPECT_TRUE(greedy_sequence(a, prompt, 0).ids.empty());
}

}  // namespace
}  // namespace sluice

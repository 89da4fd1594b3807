#include "architecture/weight_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "architecture/config_testing.h"

namespace sluice {
namespace {

using testing::dense_config;
using ::testing::ElementsAre;
using testing::moe_config;
using testing::next_config;

const WeightSpec& spec_of(const std::vector<WeightSpec>& table, std::string_view name) {
  for (const WeightSpec& spec : table) {
    if (spec.name == name) return spec;
  }
  throw std::runtime_error(fmt::format("no weight {}", name));
}

std::int64_t elements(const Shape& shape) { return static_cast<std::int64_t>(*element_count(shape)); }

std::vector<std::array<std::int64_t, 3>> runs_of(const WeightForm& form) {
  std::vector<std::array<std::int64_t, 3>> out;
  for (const RowRun& run : form.runs) out.push_back({run.source, run.first, run.count});
  return out;
}

TEST(WeightTable, CoversEveryElementOfEveryFormOnce) {
  for (const auto& text : {dense_config(), dense_config().with("attention_bias", "true"), moe_config(), next_config(),
                           next_config().with("intermediate_size", "80").with("decoder_sparse_step", "2")}) {
    std::set<std::string> names;
    for (const WeightSpec& spec : weight_table(text.read())) {
      EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
      ASSERT_FALSE(spec.forms.empty());
      for (const WeightForm& form : spec.forms) {
        std::int64_t rows = 0;
        for (const RowRun& run : form.runs) {
          const Shape& source = form.sources.at(static_cast<std::size_t>(run.source)).shape;
          ASSERT_GE(run.first, 0);
          ASSERT_GT(run.count, 0);
          ASSERT_LE(run.first + run.count, elements(source) / source.back());
          ASSERT_EQ(source.back(), spec.shape.back()) << spec.name;
          rows += run.count;
        }
        EXPECT_EQ(rows * spec.shape.back(), elements(spec.shape)) << spec.name;
      }
    }
  }
}

// The two weights that share a tensor take every row of it, each once.
TEST(WeightTable, TakesGroupedRowsApartPerKeyHead) {
  // Hk 2, Hv 4, dk 16, dv 24, r 2: a group is q 16 | k 16 | v 48 | z 48 = 128 rows.
  const auto table = weight_table(next_config().read());
  EXPECT_THAT(runs_of(spec_of(table, "layers.0.linear.qkv").forms[0]),
              ElementsAre(std::array<std::int64_t, 3>{0, 0, 16}, std::array<std::int64_t, 3>{0, 128, 16},
                          std::array<std::int64_t, 3>{0, 16, 16}, std::array<std::int64_t, 3>{0, 144, 16},
                          std::array<std::int64_t, 3>{0, 32, 48}, std::array<std::int64_t, 3>{0, 160, 48}));
  EXPECT_THAT(runs_of(spec_of(table, "layers.0.linear.z").forms[0]),
              ElementsAre(std::array<std::int64_t, 3>{0, 80, 48}, std::array<std::int64_t, 3>{0, 208, 48}));
  EXPECT_THAT(runs_of(spec_of(table, "layers.0.linear.b").forms[0]),
              ElementsAre(std::array<std::int64_t, 3>{0, 0, 2}, std::array<std::int64_t, 3>{0, 4, 2}));
  EXPECT_THAT(runs_of(spec_of(table, "layers.0.linear.a").forms[0]),
              ElementsAre(std::array<std::int64_t, 3>{0, 2, 2}, std::array<std::int64_t, 3>{0, 6, 2}));
  EXPECT_EQ(spec_of(table, "layers.0.linear.qkv").forms[0].sources[0].name, "layers.0.linear_attn.in_proj_qkvz.weight");
  EXPECT_THAT(spec_of(table, "layers.0.linear.qkv").forms[0].sources[0].shape, ElementsAre(256, 64));
}

TEST(WeightTable, ReadsExpertsFusedOrOneByOne) {
  const auto table = weight_table(moe_config().read());
  const WeightSpec& gate_up = spec_of(table, "layers.3.moe.gate_up");
  EXPECT_THAT(gate_up.shape, ElementsAre(8, 80, 64));
  ASSERT_EQ(gate_up.forms.size(), 2u);
  EXPECT_EQ(gate_up.forms[0].sources[0].name, "layers.3.mlp.experts.gate_up_proj");
  EXPECT_THAT(gate_up.forms[0].sources[0].shape, ElementsAre(8, 80, 64));
  ASSERT_EQ(gate_up.forms[1].sources.size(), 16u);
  EXPECT_EQ(gate_up.forms[1].sources[0].name, "layers.3.mlp.experts.0.gate_proj.weight");
  EXPECT_EQ(gate_up.forms[1].sources[1].name, "layers.3.mlp.experts.0.up_proj.weight");
  EXPECT_EQ(gate_up.forms[1].sources[15].name, "layers.3.mlp.experts.7.up_proj.weight");
  EXPECT_THAT(spec_of(table, "layers.3.moe.down").shape, ElementsAre(8, 64, 40));
}

TEST(WeightTable, GivesTheZeroCentredNormsTheirOne) {
  for (const WeightSpec& spec : weight_table(dense_config().read())) {
    const bool norm = spec.name.ends_with("norm") && !spec.name.ends_with("linear.norm");
    EXPECT_EQ(spec.elementwise, norm ? Elementwise::plus_one : Elementwise::none) << spec.name;
  }
}

TEST(WeightTable, LeavesOutTheHeadWhenTied) {
  const auto names = [](const std::vector<WeightSpec>& table) {
    std::vector<std::string> out;
    for (const WeightSpec& spec : table) out.push_back(spec.name);
    return out;
  };
  const auto untied = names(weight_table(dense_config().read())),
             tied = names(weight_table(dense_config().with("tie_word_embeddings", "true").read()));
  EXPECT_EQ(untied.front(), "embed_tokens");
  EXPECT_EQ(untied.back(), "lm_head");
  EXPECT_EQ(tied.back(), "norm");
  EXPECT_EQ(tied.size() + 1, untied.size());
}

TEST(WeightTable, AsksForBiasesOnlyWithAttentionBias) {
  const auto count = [](const std::vector<WeightSpec>& table) {
    return std::count_if(table.begin(), table.end(), [](const WeightSpec& spec) {
      return spec.name.ends_with("_bias") && spec.name.find("attn") != std::string::npos;
    });
  };
  EXPECT_EQ(count(weight_table(dense_config().read())), 0);
  EXPECT_EQ(count(weight_table(dense_config().with("attention_bias", "true").read())), 4);
}

TEST(WeightTable, ListsEveryFamilyOnce) {
  std::set<std::string_view> names, types;
  for (const Family* family : families()) {
    EXPECT_TRUE(names.insert(family->name).second);
    EXPECT_NE(family->add_layer, nullptr);
    for (const std::string_view type : family->model_types) {
      EXPECT_TRUE(types.insert(type).second) << type;
      EXPECT_EQ(find_family(type), family);
    }
  }
  EXPECT_THAT(names, ElementsAre("qwen3_5", "qwen3_5_moe", "qwen3_next"));
  EXPECT_EQ(find_family("qwen"), nullptr);
}

}  // namespace
}  // namespace sluice

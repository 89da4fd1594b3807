// Every golden case as a dense package, each recurrence and each kind of gates, on the stock runtime.
#include <gmock/gmock.h>

#include <cstring>
#include <fstream>

#include "tests/packages/packages.h"

namespace sluice {
namespace {

using ::testing::Combine;
using ::testing::Values;
using ::testing::ValuesIn;

constexpr Combination kLinearAttention{"linear_attention", Target::ort_cpu, Layout::dense, Recurrence::linear_attention,
                                       Gates::effective};
constexpr Combination kGatedDeltaNetRaw{"gated_delta_net_raw", Target::ort_cpu, Layout::dense,
                                        Recurrence::gated_delta_net, Gates::raw};
constexpr Combination kGatedDeltaNetEffective{"gated_delta_net_effective", Target::ort_cpu, Layout::dense,
                                              Recurrence::gated_delta_net, Gates::effective};

class DensePackage : public ::testing::TestWithParam<std::tuple<std::string, Combination>> {};

TEST_P(DensePackage, computes_what_the_checkpoint_computes) {
  const auto& [name, combination] = GetParam();
  const std::filesystem::path checkpoint = golden::directory() / name;
  const testing::TempFolder folder;
  VerifyOptions options;
  options.package = export_package(checkpoint, combination, folder);
  options.checkpoint = checkpoint;
  options.expect = checkpoint / "expected.safetensors";
  const VerifyReport report = verify_package(options);
  expect_within(report, 2);
  // The greedy tokens that transformers chose, not only near-ties of them.
  expect_greedy_equal(report);
}

INSTANTIATE_TEST_SUITE_P(, DensePackage,
                         Combine(ValuesIn(golden::cases()),
                                 Values(kLinearAttention, kGatedDeltaNetRaw, kGatedDeltaNetEffective)),
                         [](const auto& test) {
                           return golden::test_name(std::get<0>(test.param)) + "_" + std::get<1>(test.param).name;
                         });

TEST(DensePackages, differ_by_rounding_where_one_operator_is_swapped) {
  const std::filesystem::path checkpoint = golden::directory() / "dense35-asym";
  const testing::TempFolder a, b;
  VerifyOptions options;
  options.package = export_package(checkpoint, kGatedDeltaNetEffective, a);
  options.against = export_package(checkpoint, kLinearAttention, b);
  expect_within(verify_package(options), 1);
}

TEST(DensePackages, with_a_pruned_head_give_the_same_logits_one_position_a_step) {
  const std::filesystem::path checkpoint = golden::directory() / "dense35-base";
  const testing::TempFolder folder;
  ExportOptions pruned;
  pruned.prune_lm_head = true;
  VerifyOptions options;
  options.package = export_package(checkpoint, kLinearAttention, folder, pruned);
  options.expect = checkpoint / "expected.safetensors";
  expect_within(verify_package(options), 1, false);
}

TEST(DensePackages, cut_to_leading_layers_are_held_against_the_reference_cut_alike) {
  const std::filesystem::path checkpoint = golden::directory() / "dense35-base";
  const testing::TempFolder folder;
  ExportOptions cut;
  cut.num_layers = 2;
  VerifyOptions options;
  options.package = export_package(checkpoint, kLinearAttention, folder, cut);
  options.checkpoint = checkpoint;
  const VerifyReport report = verify_package(options);
  expect_within(report, 1);
  EXPECT_THAT(report.baselines[0].baseline, ::testing::HasSubstr("2 of 4 layers"));
}

TEST(DensePackages, with_one_weight_wrong_are_outside_tolerance) {
  const std::filesystem::path checkpoint = golden::directory() / "dense35-base";
  const testing::TempFolder folder;
  VerifyOptions options;
  options.package = export_package(checkpoint, kLinearAttention, folder);
  options.checkpoint = checkpoint;
  const Manifest manifest = read_manifest(options.package);
  const auto weight = std::ranges::find(manifest.weights_index, "layers.1.linear.norm", &WeightInfo::canonical);
  ASSERT_NE(weight, manifest.weights_index.end());
  ASSERT_EQ(weight->dtype, DType::f32);
  std::fstream data(options.package / weight->file, std::ios::in | std::ios::out | std::ios::binary);
  float value = 0;
  data.seekg(static_cast<std::streamoff>(weight->offset));
  data.read(reinterpret_cast<char*>(&value), sizeof value);
  value *= 1.25f;
  data.seekp(static_cast<std::streamoff>(weight->offset));
  data.write(reinterpret_cast<const char*>(&value), sizeof value);
  data.close();
  const VerifyReport report = verify_package(options);
  EXPECT_FALSE(report.within());
  EXPECT_FALSE(report.baselines[0].reasons.empty());
  EXPECT_THAT(to_text(report), ::testing::HasSubstr("OUTSIDE TOLERANCE"));
}

}  // namespace
}  // namespace sluice

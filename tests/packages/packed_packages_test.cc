// Packed packages: on the stock runtime as far as it has kernels, whole with naive operators, and with our own.
#include <gmock/gmock.h>

#include <cmath>

#include "ops/register.h"
#include "tests/packages/packages.h"
#include "tests/support/naive_operators.h"
#include "weights/weight_source.h"

namespace sluice {
namespace {

using ::testing::Combine;
using ::testing::HasSubstr;
using ::testing::Values;
using ::testing::ValuesIn;

constexpr Combination kCudaRaw{"raw", Target::ort_cuda, Layout::packed, Recurrence::gated_delta_net, Gates::raw};
constexpr Combination kCudaEffective{"effective", Target::ort_cuda, Layout::packed, Recurrence::gated_delta_net,
                                     Gates::effective};
constexpr Combination kRaw{"gated_delta_net_raw", Target::sluice, Layout::packed, Recurrence::gated_delta_net,
                           Gates::raw};
constexpr Combination kEffective{"gated_delta_net_effective", Target::sluice, Layout::packed,
                                 Recurrence::gated_delta_net, Gates::effective};
constexpr Combination kVarlen{"varlen_linear_attention", Target::sluice, Layout::packed,
                              Recurrence::varlen_linear_attention, Gates::effective};

OrtStatus* own_operators(OrtSessionOptions* options, const OrtApiBase* base) {
  return ops::register_custom_ops(options, base, best_level());
}

using CaseAndCombination = std::tuple<std::string, Combination>;

std::string name_of_test(const ::testing::TestParamInfo<CaseAndCombination>& test) {
  return golden::test_name(std::get<0>(test.param)) + "_" + std::get<1>(test.param).name;
}

class PackedPackage : public ::testing::TestWithParam<CaseAndCombination> {
 protected:
  // Exports the case and holds it against checkpoint and expected logits.
  VerifyReport whole(RegisterOperators operators, ExportOptions how = {}) {
    const std::filesystem::path checkpoint = golden::directory() / std::get<0>(GetParam());
    VerifyOptions options;
    options.package = export_package(checkpoint, std::get<1>(GetParam()), folder_, std::move(how));
    options.checkpoint = checkpoint;
    options.expect = checkpoint / "expected.safetensors";
    return verify_package(options, operators);
  }
  static void expect_ragged(const VerifyReport& report) {
    for (const BaselineResult& baseline : report.baselines) {
      EXPECT_EQ(baseline.procedures.back().name, "ragged batch");
    }
  }
  testing::TempFolder folder_;
};

// The production graph without its attention layers, on kernels that are not ours.
class LeadingLinearLayers : public PackedPackage {};

TEST_P(LeadingLinearLayers, run_on_the_stock_runtime) {
  const std::filesystem::path checkpoint = golden::directory() / std::get<0>(GetParam());
  const HybridConfig config = open_model(checkpoint).config;
  ExportOptions cut;
  cut.activation = DType::f32;
  cut.num_layers = std::ranges::find(config.layer_kinds, LayerKind::full_attention) - config.layer_kinds.begin();
  if (cut.num_layers == 0) GTEST_SKIP() << "the first layer is full attention";
  VerifyOptions options;
  options.package = export_package(checkpoint, std::get<1>(GetParam()), folder_, cut);
  options.checkpoint = checkpoint;
  const VerifyReport report = verify_package(options);
  expect_within(report, 1);
  expect_ragged(report);
}

INSTANTIATE_TEST_SUITE_P(, LeadingLinearLayers, Combine(ValuesIn(golden::cases()), Values(kCudaRaw, kCudaEffective)),
                         name_of_test);

// Every layer, with naive operators for PagedAttention and for what keeps weights in the checkpoint's dtype: the rest,
// GatedDeltaNet above all, is the runtime's.
class PackedOnNaiveOperators : public PackedPackage {};

TEST_P(PackedOnNaiveOperators, computes_what_the_checkpoint_computes) {
  const VerifyReport report = whole(register_naive_operators);
  expect_within(report, 2);
  expect_ragged(report);
}

// The cases whose graphs differ; the others repeat them with other files or lengths.
INSTANTIATE_TEST_SUITE_P(, PackedOnNaiveOperators,
                         Combine(Values("dense35-base", "dense35-asym", "dense35-act", "dense35-yarn", "dense35-vl",
                                        "dense35-tied", "dense35-allfull", "dense35-smallscale", "moe35-base",
                                        "moe35-vl", "next-base", "next-mixed"),
                                 Values(kRaw, kEffective)),
                         name_of_test);

class PackedOnOwnOperators : public PackedPackage {};

TEST_P(PackedOnOwnOperators, computes_what_the_checkpoint_computes) {
  const VerifyReport report = whole(own_operators);
  expect_within(report, 2);
  expect_ragged(report);
  expect_greedy_equal(report);
}

INSTANTIATE_TEST_SUITE_P(, PackedOnOwnOperators, Combine(ValuesIn(golden::cases()), Values(kRaw, kEffective, kVarlen)),
                         name_of_test);

// The graph made for a GPU, whole: f16 throughout.
class HalfPrecisionPackage : public PackedPackage {};

TEST_P(HalfPrecisionPackage, fails_to_load_on_the_stock_runtime_for_want_of_paged_attention_alone) {
  const std::filesystem::path checkpoint = golden::directory() / std::get<0>(GetParam());
  const std::filesystem::path package = export_package(checkpoint, std::get<1>(GetParam()), folder_);
  for (const Optimization optimization : {Optimization::all, Optimization::none}) {
    SessionOptions options;
    options.threads = 1;
    options.optimization = optimization;
    const std::string message = testing::error_of([&] { Session(package, options); });
    EXPECT_THAT(message, HasSubstr("Could not find an implementation for PagedAttention(1)"));
  }
}

TEST_P(HalfPrecisionPackage, computes_what_the_checkpoint_computes_with_naive_attention) {
  const VerifyReport report = whole(register_naive_operators);
  expect_within(report, 2);
  expect_ragged(report);
}

INSTANTIATE_TEST_SUITE_P(, HalfPrecisionPackage,
                         Combine(Values("dense35-base", "dense35-fp16", "dense35-yarn"),
                                 Values(kCudaRaw, kCudaEffective)),
                         name_of_test);

TEST(PackedPackages, differ_by_rounding_where_the_recurrent_operator_is_swapped) {
  for (const char* name : {"dense35-asym", "next-mixed"}) {
    const std::filesystem::path checkpoint = golden::directory() / name;
    const testing::TempFolder a, b;
    VerifyOptions options;
    options.package = export_package(checkpoint, kEffective, a);
    options.against = export_package(checkpoint, kVarlen, b);
    const VerifyReport report = verify_package(options, own_operators);
    expect_within(report, 1);
  }
}

TEST(PackedPackages, differ_by_rounding_from_the_dense_package_of_the_same_checkpoint) {
  constexpr Combination kDense{"dense", Target::ort_cpu, Layout::dense, Recurrence::linear_attention, Gates::effective};
  for (const char* name : {"dense35-asym", "moe35-base"}) {
    const std::filesystem::path checkpoint = golden::directory() / name;
    const testing::TempFolder a, b;
    VerifyOptions options;
    options.package = export_package(checkpoint, kVarlen, a);
    options.against = export_package(checkpoint, kDense, b);
    options.checkpoint = checkpoint;
    const VerifyReport report = verify_package(options, own_operators);
    expect_within(report, 2);
    // The noise measured for the first is the tolerance of the second, where both sides round.
    const double first = report.baselines[0].tolerance.logits, second = report.baselines[1].tolerance.logits;
    EXPECT_NEAR(std::sqrt(2.0) * first, second, 1e-6 * second);  // both scale with their own largest logit
  }
}

TEST(PackedPackages, that_capture_state_updates_compute_the_same_when_nothing_is_captured) {
  const std::filesystem::path checkpoint = golden::directory() / "next-mixed";
  const testing::TempFolder folder;
  ExportOptions capture;
  capture.state_update_capacity = 3;
  capture.prune_lm_head = true;
  VerifyOptions options;
  options.package = export_package(checkpoint, kRaw, folder, capture);
  options.checkpoint = checkpoint;
  expect_within(verify_package(options, own_operators), 1);
}

TEST(PackedPackages, with_a_pruned_head_give_the_logits_asked_for) {
  const std::filesystem::path checkpoint = golden::directory() / "dense35-base";
  const testing::TempFolder folder;
  ExportOptions pruned;
  pruned.prune_lm_head = true;
  VerifyOptions options;
  options.package = export_package(checkpoint, kRaw, folder, pruned);
  options.checkpoint = checkpoint;
  expect_within(verify_package(options, register_naive_operators), 1);
}

}  // namespace
}  // namespace sluice

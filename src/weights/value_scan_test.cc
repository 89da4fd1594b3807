#include "weights/value_scan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "weights/weights_testing.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using testing::bf16_bytes;
using testing::dense_config;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::make_tensors;
using testing::moe_config;
using testing::TempFolder;
using testing::tensor_named;
using testing::TestTensor;
using testing::write_model;

std::vector<ValueFinding> scan(const testing::ConfigText& config, const std::vector<TestTensor>& tensors,
                               ScanScope scope = ScanScope::everything, int threads = 2) {
  const TempFolder folder;
  write_model(folder, config, tensors);
  const ModelSource model = open_model(folder.path());
  ThreadPool pool(threads);
  Progress progress;
  return scan_values(model, scope, pool, progress);
}

void poke(TestTensor& tensor, std::size_t element, float value) {
  tensor.data.replace(2 * element, 2, bf16_bytes({value}));
}

TEST(ValueScan, FindsNothingInSoundModels) {
  EXPECT_THAT(scan(dense_config(), make_tensors(dense_config().read())), IsEmpty());
  EXPECT_THAT(scan(moe_config(), make_tensors(moe_config().read(), "model.", 1)), IsEmpty());
  ThreadPool pool(2);
  Progress progress;
  std::vector<std::filesystem::path> folders{std::string(SLUICE_SOURCE_DIR) + "/models/river-mini"};
  for (const auto& item : std::filesystem::directory_iterator(std::string(SLUICE_SOURCE_DIR) + "/tests/data/goldens")) {
    if (std::filesystem::exists(item.path() / "meta.json")) folders.push_back(item.path());
  }
  for (const auto& folder : folders) {
    for (const ValueFinding& finding : scan_values(open_model(folder), ScanScope::everything, pool, progress))
      ADD_FAILURE() << folder << ": " << finding.message;
  }
}

TEST(ValueScan, NamesTensorAndElementOfEveryKindOfNonFiniteValue) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float value : {kInf, -kInf, kNan, -kNan}) {
    auto tensors = make_tensors(moe_config().read(), "model.", 1);
    TestTensor& up = tensor_named(tensors, "model.layers.1.mlp.experts.3.up_proj.weight");
    poke(up, 777, value);
    poke(up, 1501, value);
    const auto findings = scan(moe_config(), tensors);
    ASSERT_EQ(findings.size(), 1u);
    EXPECT_EQ(findings[0].kind, FindingKind::not_finite);
    EXPECT_EQ(findings[0].tensor, up.name);
    EXPECT_EQ(findings[0].element, 777u);
    EXPECT_EQ(findings[0].count, 2u);
    EXPECT_THAT(findings[0].message, AllOf(HasSubstr(up.name), HasSubstr("element 777"), HasSubstr("1 more")));
  }
}

TEST(ValueScan, ReportsTheSameOnAnyNumberOfThreads) {
  auto tensors = make_tensors(dense_config().read());
  for (const std::size_t element : {5u, 20000u, 3u})
    poke(tensor_named(tensors, "model.embed_tokens.weight"), element, std::numeric_limits<float>::infinity());
  for (const int threads : {1, 2, 3}) {
    const auto findings = scan(dense_config(), tensors, ScanScope::everything, threads);
    ASSERT_EQ(findings.size(), 1u);
    EXPECT_EQ(findings[0].element, 3u);
    EXPECT_EQ(findings[0].count, 3u);
  }
}

TEST(ValueScan, LooksAtNormsAndDecaysAloneWhenAskedTo) {
  auto tensors = make_tensors(dense_config().read());
  poke(tensor_named(tensors, "model.embed_tokens.weight"), 1, std::numeric_limits<float>::infinity());
  EXPECT_THAT(scan(dense_config(), tensors, ScanScope::small_tensors), IsEmpty());
  poke(tensor_named(tensors, "model.norm.weight"), 9, std::numeric_limits<float>::infinity());
  const auto findings = scan(dense_config(), tensors, ScanScope::small_tensors);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].message, AllOf(HasSubstr("model.norm.weight"), HasSubstr("element 9"), HasSubstr("inf")));
}

TEST(ValueScan, TellsNormsThatWereShiftedAlready) {
  for (const std::string name :
       {"model.norm.weight", "model.layers.0.input_layernorm.weight", "model.layers.3.self_attn.q_norm.weight"}) {
    auto tensors = make_tensors(dense_config().read());
    TestTensor& norm = tensor_named(tensors, name);
    std::vector<float> values(norm.data.size() / 2);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1.0f + 0.01f * static_cast<float>(i % 20) - 0.1f;
    norm.data = bf16_bytes(values);
    const auto findings = scan(dense_config(), tensors, ScanScope::small_tensors);
    ASSERT_EQ(findings.size(), 1u) << name;
    EXPECT_EQ(findings[0].kind, FindingKind::shifted_norm);
    EXPECT_THAT(findings[0].message, AllOf(HasSubstr(name), HasSubstr("1 had been added")));
  }
}

TEST(ValueScan, TellsAPlainNormThatWasCentred) {
  auto tensors = make_tensors(dense_config().read());
  TestTensor& norm = tensor_named(tensors, "model.layers.1.linear_attn.norm.weight");
  norm.data = bf16_bytes(std::vector<float>(24, 0.05f));
  const auto findings = scan(dense_config(), tensors);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, FindingKind::centred_norm);
  EXPECT_EQ(findings[0].tensor, norm.name);
}

TEST(ValueScan, TellsDecaysThatForgetAllOrNothing) {
  struct Case {
    float a_log, dt_bias;
    const char* what;
  };
  for (const Case& c : {Case{20.0f, 1.0f, "forgotten at every token"}, Case{-30.0f, 1.0f, "never forgotten"},
                        Case{0.0f, -60.0f, "never forgotten"}, Case{0.0f, 120.0f, "forgotten at every token"}}) {
    auto tensors = make_tensors(dense_config().read());
    poke(tensor_named(tensors, "model.layers.2.linear_attn.A_log"), 3, c.a_log);
    poke(tensor_named(tensors, "model.layers.2.linear_attn.dt_bias"), 3, c.dt_bias);
    const auto findings = scan(dense_config(), tensors, ScanScope::small_tensors);
    ASSERT_EQ(findings.size(), 1u) << c.a_log << " " << c.dt_bias;
    EXPECT_EQ(findings[0].kind, FindingKind::decay_range);
    EXPECT_EQ(findings[0].element, 3u);
    EXPECT_THAT(findings[0].message,
                AllOf(HasSubstr("layers.2.linear_attn.A_log"), HasSubstr("head 3"), HasSubstr(c.what)));
  }
}

TEST(ValueScan, TellsMatricesOfZeros) {
  auto tensors = make_tensors(dense_config().read());
  TestTensor& matrix = tensor_named(tensors, "model.layers.1.mlp.up_proj.weight");
  matrix.data.assign(matrix.data.size(), '\0');
  poke(matrix, 4, -0.0f);
  const auto findings = scan(dense_config(), tensors);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, FindingKind::all_zero);
  EXPECT_EQ(findings[0].tensor, matrix.name);
}

TEST(ValueScan, FindsNonFiniteValuesOfEveryDTypeAtAnyAlignment) {
  const auto check = [](DType dtype, std::string bytes, std::size_t size, std::initializer_list<std::size_t> at,
                        const std::string& value) {
    for (const std::size_t element : at) bytes.replace(element * size, size, value);
    for (const std::size_t shift : {0u, 1u, 3u}) {
      const std::string moved = std::string(shift, 'x') + bytes;
      const WeightPiece piece{dtype, std::as_bytes(std::span(moved).subspan(shift))};
      const auto found = find_non_finite(piece);
      if (at.size() == 0) {
        EXPECT_FALSE(found);
      } else {
        ASSERT_TRUE(found);
        EXPECT_EQ(found->first, *at.begin());
        EXPECT_EQ(found->count, at.size());
      }
    }
  };
  const std::string two(2 * 10001, '\x3b'), four(4 * 10001, '\x3b');
  const auto word = [](std::uint32_t bits, std::size_t size) {
    return std::string(reinterpret_cast<const char*>(&bits), size);
  };
  for (const std::uint32_t bits : {0x7f80u, 0xff80u, 0x7f81u, 0xffffu})
    check(DType::bf16, two, 2, {4095, 4096, 10000}, word(bits, 2));
  for (const std::uint32_t bits : {0x7c00u, 0xfc00u, 0x7c01u, 0xffffu})
    check(DType::f16, two, 2, {0, 9999}, word(bits, 2));
  for (const std::uint32_t bits : {0x7f800000u, 0xff800000u, 0x7f800001u})
    check(DType::f32, four, 4, {7}, word(bits, 4));
  check(DType::bf16, two, 2, {}, "");
  check(DType::f16, two, 2, {}, "");
  check(DType::f32, four, 4, {}, "");
}

}  // namespace
}  // namespace sluice

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <regex>

#include "export/exporter.h"
#include "inspect/check.h"
#include "inspect/drawings.h"
#include "inspect/html.h"
#include "inspect/report.h"
#include "weights/weights_testing.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::TempFolder;

const fs::path kGoldens = fs::path(SLUICE_SOURCE_DIR) / "tests/data/goldens";
const fs::path kRiver = fs::path(SLUICE_SOURCE_DIR) / "models/river-mini";

// Exports a golden as it would be for `target`.
fs::path exported(const TempFolder& folder, const std::string& golden, Target target) {
  ExportRequest request;
  request.checkpoint = kGoldens / golden;
  request.output = folder / golden;
  request.options.target = target;
  request.sync = false;
  request.threads = 2;
  if (target == Target::sluice) {
    folder.write("libsluice_ops.so", "stands for the library");
    request.operator_library = folder / "libsluice_ops.so";
  }
  Progress progress;
  ExportJob(request).run(progress);
  return request.output;
}

CheckReport checked(const fs::path& path) {
  ThreadPool pool(2);
  Progress progress;
  return check(path, pool, progress);
}

TEST(Inspect, SumsACheckpointByPartAndLayer) {
  const InspectReport r = inspect(kRiver);
  EXPECT_EQ(r.subject, InspectReport::Subject::checkpoint);
  std::uint64_t tensors = 0, layers = 0;
  for (const TensorReport& tensor : r.tensors) tensors += tensor.bytes;
  for (const LayerReport& layer : r.layers) layers += layer.mixer_bytes + layer.mlp_bytes;
  EXPECT_EQ(r.total().bytes, tensors);
  EXPECT_EQ(r.total().parameters * 2, tensors) << "bf16 throughout";
  EXPECT_EQ(r.part(Part::embedding).parameters, 2048u * 192);
  EXPECT_EQ(r.part(Part::embedding).active_bytes, r.part(Part::embedding).bytes)
      << "tied: read whole as the output projection";
  EXPECT_EQ(r.part(Part::mlp).parameters, 8u * 3 * 192 * 384);
  EXPECT_EQ(layers + r.part(Part::embedding).bytes + 2 * 192, tensors) << "all but the embedding and the last norm";
  EXPECT_EQ(layers_in_words(r), "6 linear attention, 2 full attention");
}

// river-mini: 2 full layers of 2 key-value heads of 64; 6 linear layers of 4 heads of 32 x 32 and 256 channels, K = 4.
TEST(Inspect, KnowsWhatASequenceKeeps) {
  const StateReport s = inspect(kRiver).state;
  EXPECT_EQ(s.kv_bytes_per_token, 2u * 2 * 2 * 64 * 2);
  EXPECT_EQ(s.recurrent_bytes, 6u * 4 * 32 * 32 * 4);
  EXPECT_EQ(s.conv_bytes, 6u * 256 * 3 * 2);
  const std::uint64_t tokens = crossover_tokens(s);
  EXPECT_GT(tokens * s.kv_bytes_per_token, s.fixed_bytes());
  EXPECT_LE((tokens - 1) * s.kv_bytes_per_token, s.fixed_bytes());
  EXPECT_EQ(crossover_tokens({}), 0u);
}

TEST(Inspect, CountsOfExpertsThoseATokenReads) {
  const InspectReport r = inspect(kGoldens / "moe35-base");  // 8 experts, 2 a token
  EXPECT_EQ(r.model.experts, 8);
  EXPECT_EQ(r.part(Part::experts).active_bytes * 4, r.part(Part::experts).bytes);
  EXPECT_EQ(r.part(Part::shared_expert).active_bytes, r.part(Part::shared_expert).bytes);
  EXPECT_EQ(r.part(Part::embedding).active_bytes, 64u * 2) << "one row";
  for (const LayerReport& layer : r.layers) EXPECT_TRUE(layer.experts);
}

TEST(Inspect, SaysWhereEachTensorGoes) {
  const InspectReport r = inspect(kGoldens / "next-base");
  const auto groups = group_tensors(r);
  const auto group = [&](std::string_view name) {
    const auto it = std::find_if(groups.begin(), groups.end(), [&](const TensorGroup& g) { return g.name == name; });
    return it == groups.end() ? TensorGroup{} : *it;
  };
  EXPECT_EQ(group("model.layers.*.linear_attn.in_proj_qkvz.weight").use, "layers.*.linear.qkv layers.*.linear.z");
  EXPECT_EQ(group("model.layers.*.linear_attn.in_proj_qkvz.weight").count, 3u);
  EXPECT_EQ(group("model.layers.*.mlp.experts.*.up_proj.weight").count, 4u * 8);
  EXPECT_EQ(group("model.layers.*.mlp.experts.*.up_proj.weight").use, "layers.*.moe.gate_up");
  EXPECT_EQ(group("lm_head.weight").use, "lm_head");
  std::uint64_t count = 0;
  for (const TensorGroup& g : groups) count += g.count;
  EXPECT_EQ(count, r.tensors.size());
}

TEST(Inspect, ListsWhatIsLeftOut) {
  const InspectReport r = inspect(kGoldens / "dense35-mtp");
  EXPECT_EQ(r.unused_bytes(), 119552u);
  EXPECT_EQ(std::count_if(r.tensors.begin(), r.tensors.end(), [](const TensorReport& t) { return !t.used; }), 15);
  EXPECT_THAT(to_text(r), AllOf(HasSubstr("120 kB that are left out"), HasSubstr("left out: multi-token prediction")));
}

TEST(Inspect, DescribesAPackageAsItsCheckpoint) {
  for (const std::string golden : {"dense35-base", "dense35-tied", "moe35-vl", "next-mixed"}) {
    const InspectReport source = inspect(kGoldens / golden);
    for (const Target target : {Target::ort_cpu, Target::sluice}) {
      const TempFolder out;
      const InspectReport r = inspect(exported(out, golden, target));
      EXPECT_EQ(r.subject, InspectReport::Subject::package);
      EXPECT_EQ(r.total().parameters, source.total().parameters) << golden;
      EXPECT_EQ(r.total().active_parameters, source.total().active_parameters) << golden;
      EXPECT_EQ(r.model.intermediate, source.model.intermediate) << golden;
      EXPECT_EQ(r.model.tied, source.model.tied);
      EXPECT_EQ(r.layers.size(), source.layers.size());
      EXPECT_EQ(r.state.recurrent_bytes, source.state.recurrent_bytes);
      EXPECT_FALSE(r.operators.empty());
      const auto has = [&](std::string_view type) {
        return std::any_of(r.operators.begin(), r.operators.end(),
                           [&](const OperatorCount& op) { return op.type == type; });
      };
      EXPECT_TRUE(target == Target::sluice ? has("GatedDeltaNet") : has("LinearAttention"));
      EXPECT_THAT(to_text(r), AllOf(HasSubstr("recurrence: "), HasSubstr("model.onnx.data")));
    }
  }
}

TEST(Inspect, RefusesFoldersThatAreNeither) {
  const TempFolder folder;
  EXPECT_THAT(testing::error_of([&] { inspect(folder.path()); }), HasSubstr("no weights"));
  folder.write("genai_config.json", "{}");
  EXPECT_THAT(testing::error_of([&] { inspect(folder.path()); }), HasSubstr("sluice.json"));
  EXPECT_THAT(testing::error_of([&] { inspect("/nonexistent"); }), HasSubstr("no such"));
}

TEST(Inspect, JsonHoldsEveryTensorAndTheSums) {
  const InspectReport r = inspect(kGoldens / "dense35-vl");
  const Json json = parse_json(to_json(r).dump(), "report");
  EXPECT_EQ(json.at("subject", "").as_string(""), "checkpoint");
  EXPECT_EQ(json.at("tensors", "").as_array("").size(), r.tensors.size());
  EXPECT_EQ(json.at("total", "").at("bytes", "").as_uint(""), r.total().bytes);
  EXPECT_EQ(json.at("state", "").at("kv_bytes_per_token", "").as_uint(""), r.state.kv_bytes_per_token);
  EXPECT_EQ(json.at("layers", "").as_array("").size(), 5u);
  EXPECT_EQ(json.at("notices", "").as_array("").size(), r.notices.size());
}

TEST(Inspect, WritesSizesInThreeDigits) {
  EXPECT_EQ(bytes_in_words(0), "0 B");
  EXPECT_EQ(bytes_in_words(999), "999 B");
  EXPECT_EQ(bytes_in_words(1000), "1.00 kB");
  EXPECT_EQ(bytes_in_words(999'499), "999 kB");
  EXPECT_EQ(bytes_in_words(999'500), "1.00 MB");
  EXPECT_EQ(bytes_in_words(53'790'000'000), "53.8 GB");
  EXPECT_EQ(count_in_words(999), "999");
  EXPECT_EQ(count_in_words(26'900'000'000), "26.9 B");
}

// Every tag that is opened is closed, in order; void elements and self-closed ones aside.
void expect_balanced(const std::string& page) {
  std::vector<std::string> open;
  const std::regex tag(R"(<(/?)([a-z0-9]+)[^>]*?(/?)>)");
  for (auto it = std::sregex_iterator(page.begin(), page.end(), tag); it != std::sregex_iterator(); ++it) {
    const std::string name = (*it)[2];
    if ((*it)[3] == "/" || name == "meta") continue;
    if ((*it)[1] != "/") {
      open.push_back(name);
      continue;
    }
    ASSERT_FALSE(open.empty());
    ASSERT_EQ(open.back(), name);
    open.pop_back();
  }
  EXPECT_THAT(open, IsEmpty());
}

TEST(Html, IsOnePageThatFetchesNothing) {
  const TempFolder folder;
  for (const fs::path& path : {kRiver, kGoldens / "moe35-vl", kGoldens / "dense35-allfull",
                               exported(folder, "dense35-base", Target::sluice)}) {
    const std::string page = to_html(inspect(path));
    expect_balanced(page);
    for (const std::string text : {"http:", "https:", "<script", "<link", "<img", "@import", "url(", "nan", "inf\""})
      EXPECT_THAT(page, Not(HasSubstr(text))) << path;
    EXPECT_THAT(page, AllOf(HasSubstr("<svg"), HasSubstr("Where the bytes are"), HasSubstr("What a sequence keeps")));
    EXPECT_LT(page.size(), 400'000u);
  }
}

TEST(Html, DrawsModelsWithLayersOfOneKindAlone) {
  InspectReport linear = inspect(kRiver);
  for (LayerReport& layer : linear.layers) layer.kind = LayerKind::linear_attention;
  linear.state.kv_bytes_per_token = 0;
  expect_balanced(to_html(linear));
  EXPECT_THAT(draw_state(linear), AllOf(HasSubstr("fixed state"), Not(HasSubstr("KV cache")), Not(HasSubstr("nan"))));
  const InspectReport full = inspect(kGoldens / "dense35-allfull");
  EXPECT_THAT(draw_state(full), AllOf(HasSubstr("KV cache"), Not(HasSubstr("outgrows")), Not(HasSubstr("nan"))));
  EXPECT_THAT(draw_state({}), AllOf(HasSubstr("</svg>"), Not(HasSubstr("nan"))));
  EXPECT_THAT(draw_layers({}), Not(HasSubstr("nan")));
  EXPECT_THAT(draw_parts({}), Not(HasSubstr("nan")));
}

TEST(Html, EscapesWhatNamesHold) {
  InspectReport r = inspect(kRiver);
  r.path = "/tmp/<b>&\"x\"";
  r.tensors.front().name = "<script>alert(1)</script>\n";
  r.notices = {"a < b & c"};
  const std::string page = to_html(r);
  EXPECT_THAT(page, AllOf(Not(HasSubstr("<script")), HasSubstr("&lt;script&gt;"), HasSubstr("a &lt; b &amp; c"),
                          HasSubstr("&lt;b&gt;&amp;&quot;x&quot;")));
}

TEST(Check, PassesAnExportAndReadsEveryByte) {
  const TempFolder folder;
  const fs::path package = exported(folder, "dense35-base", Target::sluice);
  const CheckReport report = checked(package);
  EXPECT_THAT(report.problems, IsEmpty());
  EXPECT_THAT(report.remarks, IsEmpty());
  std::uint64_t bytes = 0;
  for (const FileReport& file : inspect(package).files) bytes += file.bytes;
  EXPECT_EQ(report.bytes, bytes);
  EXPECT_THAT(to_text(report), HasSubstr("good"));
}

TEST(Check, NamesAFileWhoseBytesChanged) {
  const TempFolder folder;
  const fs::path package = exported(folder, "dense35-base", Target::ort_cpu);
  {
    std::fstream file(package / "model.onnx.data", std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(4099);
    const int byte = file.peek();
    file.seekp(4099);
    file.put(static_cast<char>(byte ^ 1));
  }
  const CheckReport report = checked(package);
  EXPECT_FALSE(report.good());
  EXPECT_THAT(report.problems, ElementsAre(AllOf(HasSubstr("model.onnx.data"), HasSubstr("XXH3"))));
  EXPECT_THAT(to_json(report).dump(), HasSubstr("\"good\": false"));
}

TEST(Check, NamesFilesThatAreAbsentShortOrStrange) {
  const TempFolder folder;
  const fs::path package = exported(folder, "dense35-base", Target::ort_cpu);
  fs::remove(package / "genai_config.json");
  fs::resize_file(package / "model.onnx.data", 100);
  std::ofstream(package / "notes.txt") << "x";
  const CheckReport report = checked(package);
  EXPECT_THAT(report.problems,
              ::testing::UnorderedElementsAre(HasSubstr("genai_config.json"),
                                              AllOf(HasSubstr("model.onnx.data"), HasSubstr("100 bytes"))));
  EXPECT_THAT(report.remarks, ElementsAre(HasSubstr("notes.txt")));
}

TEST(Check, FindsNonFiniteWeightsOfACheckpoint) {
  EXPECT_THAT(checked(kGoldens / "malformed/inf-weight").problems,
              ElementsAre(AllOf(HasSubstr("model.norm.weight"), HasSubstr("element 0"))));
  EXPECT_TRUE(checked(kRiver).good());
}

}  // namespace
}  // namespace sluice

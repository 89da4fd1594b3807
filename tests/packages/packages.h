// For tests: exporting golden cases and holding the packages against what is known of them.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "checkpoint/checkpoint_testing.h"
#include "eval/verify.h"
#include "export/exporter.h"
#include "tests/support/golden.h"

namespace sluice {

struct Combination {
  const char* name;
  Target target;
  Layout layout;
  Recurrence recurrence;
  Gates gates;
};

// Exports a checkpoint into `folder`/package and returns that path.
inline std::filesystem::path export_package(const std::filesystem::path& checkpoint, const Combination& combination,
                                            const testing::TempFolder& folder, ExportOptions options = {}) {
  ExportRequest request;
  request.checkpoint = checkpoint;
  request.output = folder / "package";
  request.options = std::move(options);
  request.options.target = combination.target;
  request.options.layout = combination.layout;
  request.options.recurrence = combination.recurrence;
  request.options.gates = combination.gates;
  folder.write("libsluice_ops.so", "a stand-in: these tests register operators themselves");
  request.operator_library = folder / "libsluice_ops.so";
  request.sync = false;
  request.threads = 1;
  Progress silent;
  ExportJob(std::move(request)).run(silent);
  return folder / "package";
}

inline VerifyReport verify_package(VerifyOptions options, RegisterOperators operators = nullptr) {
  options.threads = 1;
  options.session_options = [operators](const Manifest&) {
    SessionOptions how;
    how.register_operators = operators;
    how.threads = 1;
    return how;
  };
  Progress silent;
  return verify(options, silent);
}

// Within tolerance, and every baseline and procedure really compared something.
inline void expect_within(const VerifyReport& report, std::size_t baselines, bool states = true) {
  EXPECT_TRUE(report.within()) << to_text(report);
  ASSERT_EQ(report.baselines.size(), baselines);
  for (const BaselineResult& baseline : report.baselines) {
    EXPECT_GE(baseline.procedures.size(), 3u);
    for (const ProcedureResult& p : baseline.procedures) EXPECT_GT(p.logits.rows, 0) << p.name;
  }
  if (states) {
    EXPECT_FALSE(report.baselines.back().procedures.front().states.empty());
  }
}

// No token of a greedy continuation is another, not even in a near-tie.
inline void expect_greedy_equal(const VerifyReport& report) {
  for (const BaselineResult& baseline : report.baselines) {
    const auto greedy = std::ranges::find(baseline.procedures, "greedy", &ProcedureResult::name);
    ASSERT_NE(greedy, baseline.procedures.end());
    EXPECT_EQ(greedy->logits.disagreed, 0) << to_text(report);
  }
}

}  // namespace sluice

// kill -9 at many points of an export: the target is absent or whole, and the same command then works.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

const fs::path kProgram = fs::path(SLUICE_BINARY_DIR) / "bin/sluice";
const fs::path kModel = fs::path(SLUICE_SOURCE_DIR) / "models/river-mini";

pid_t start_export(const fs::path& output, bool force) {
  std::vector<std::string> words{kProgram, "export", kModel, output, "--quiet"};
  if (force) words.emplace_back("--force");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t silent;
  posix_spawn_file_actions_init(&silent);
  posix_spawn_file_actions_addopen(&silent, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int error = ::posix_spawn(&child, kProgram.c_str(), &silent, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&silent);
  return error == 0 ? child : -1;
}

int wait_for(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    files[entry.path().filename()] = {std::istreambuf_iterator<char>(in), {}};
  }
  return files;
}

class KillTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "sluice-kill-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
    const auto start = Clock::now();
    ASSERT_EQ(wait_for(start_export(root_ / "whole", false)), 0);
    duration_ = Clock::now() - start;
    whole_ = contents(root_ / "whole");
    fs::remove_all(root_ / "whole");
  }
  void TearDown() override { fs::remove_all(root_); }

  fs::path root_;
  Clock::duration duration_{};
  std::map<std::string, std::string> whole_;
};

TEST_F(KillTest, AKilledExportLeavesNothingThatLooksWhole) {
  constexpr int kPoints = 20;
  int killed = 0;
  for (int point = 0; point < kPoints; ++point) {
    const fs::path output = root_ / ("out" + std::to_string(point));
    const pid_t child = start_export(output, false);
    std::this_thread::sleep_for(duration_ * point / kPoints);
    ::kill(child, SIGKILL);
    killed += wait_for(child) != 0 ? 1 : 0;
    if (!fs::exists(output)) {
      ASSERT_EQ(wait_for(start_export(output, false)), 0) << "the re-run after a kill at point " << point;
    }
    EXPECT_EQ(contents(output), whole_) << "killed at point " << point;
    fs::remove_all(output);
    EXPECT_TRUE(fs::is_empty(root_)) << "left behind after point " << point;
  }
  EXPECT_GE(killed, kPoints / 2) << "most kills must hit a running export";
}

TEST_F(KillTest, AKilledReplacementKeepsThePackageThatWasThere) {
  const fs::path output = root_ / "out";
  ASSERT_EQ(wait_for(start_export(output, false)), 0);
  for (int point = 0; point < 20; ++point) {
    const pid_t child = start_export(output, true);
    std::this_thread::sleep_for(duration_ * point / 20);
    ::kill(child, SIGKILL);
    wait_for(child);
    ASSERT_TRUE(fs::exists(output)) << point;
    EXPECT_EQ(contents(output), whole_) << point;
  }
}

TEST_F(KillTest, AnInterruptedExportCleansUpBehindItself) {
  for (int point = 1; point < 10; ++point) {
    const fs::path output = root_ / "out";
    const pid_t child = start_export(output, false);
    std::this_thread::sleep_for(duration_ * point / 10);
    ::kill(child, SIGTERM);
    const int code = wait_for(child);
    if (code == 0) {
      EXPECT_EQ(contents(output), whole_);
    }
    fs::remove_all(output);
    // Before the handler is in place the signal ends the program, which has written nothing by then.
    EXPECT_TRUE(fs::is_empty(root_)) << "exit code " << code << " at point " << point;
  }
}

}  // namespace

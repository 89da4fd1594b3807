// Runs a Python script of tests/support in the environment that scripts/setup makes.
#pragma once

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::testing_python {

struct Result {
  int status = -1;     // as waitpid tells it; 0: the script ended well
  std::string output;  // its stdout
};

inline Result run(std::string_view script, std::vector<std::string> arguments) {
  const std::filesystem::path root = SLUICE_SOURCE_DIR;
  arguments.insert(arguments.begin(),
                   {(root / "build/deps/venv/bin/python").string(), (root / "tests/support" / script).string()});
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);

  Result result;
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return result;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  pid_t child = 0;
  const int error = ::posix_spawn(&child, pointers[0], &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::array<char, 65536> buffer;
  ssize_t count = 0;
  while (error == 0 && (count = ::read(ends[0], buffer.data(), buffer.size())) > 0) {
    result.output.append(buffer.data(), static_cast<std::size_t>(count));
  }
  ::close(ends[0]);
  if (error == 0) ::waitpid(child, &result.status, 0);
  return result;
}

}  // namespace sluice::testing_python

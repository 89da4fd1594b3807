// Runs a Python script of tests/support in the environment that scripts/setup makes.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::testing_python {

struct Result {
  int status = -1;     // as waitpid tells it; 0: the script ended well
  std::string output;  // its stdout
};

inline Result run(std::string_view script, const std::vector<std::string>& arguments) {
  const std::filesystem::path root = SLUICE_SOURCE_DIR;
  std::string command =
      "'" + (root / "build/deps/venv/bin/python").string() + "' '" + (root / "tests/support" / script).string() + "'";
  for (const std::string& argument : arguments) command += " '" + argument + "'";
  Result result;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return result;
  std::array<char, 65536> buffer;
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe))
    result.output.append(buffer.data(), n);
  result.status = pclose(pipe);
  return result;
}

}  // namespace sluice::testing_python

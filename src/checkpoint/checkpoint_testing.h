// For tests: checkpoints written into temporary folders, byte by byte where a test wants them damaged.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/shape.h"

namespace sluice::testing {

// A folder of its own, removed with everything in it.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "sluice-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  void write(std::string_view name, std::string_view bytes) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct TestTensor {
  std::string name;
  std::string dtype;  // as safetensors spells it
  Shape shape;
  std::string data;
};

// Any header text, its true length before it, any data after it.
inline std::string raw_safetensors(std::string_view header, std::string_view data = {}) {
  const std::uint64_t length = header.size();
  std::string out(sizeof length, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out.append(header).append(data);
}

inline std::string safetensors_bytes(const std::vector<TestTensor>& tensors) {
  Json header{Json::Object{}};
  std::string data;
  for (const TestTensor& tensor : tensors) {
    Json entry;
    entry.set("dtype", tensor.dtype).set("shape", Json::array(tensor.shape));
    entry.set("data_offsets", Json::array(std::vector<std::uint64_t>{data.size(), data.size() + tensor.data.size()}));
    header.set(tensor.name, std::move(entry));
    data += tensor.data;
  }
  return raw_safetensors(header.dump(-1), data);
}

// The one-line message of the Error that `body` throws; fails the test when it throws none.
template <typename Body>
std::string error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  ADD_FAILURE() << "no Error was thrown";
  return {};
}

}  // namespace sluice::testing

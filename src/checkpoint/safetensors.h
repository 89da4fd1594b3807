// One .safetensors file: a little-endian u64 header length, a JSON header, then the tensors' bytes without gaps.
// docs: https://github.com/huggingface/safetensors#format
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "base/tensor_view.h"

namespace sluice {

struct SafetensorsEntry {
  std::string name;
  TensorView view;           // bytes inside the file, possibly unaligned
  std::uint64_t offset = 0;  // bytes from the start of the file
};

struct SafetensorsContent {
  std::vector<SafetensorsEntry> entries;                      // sorted by name
  std::vector<std::pair<std::string, std::string>> metadata;  // "__metadata__", in file order
};

// Checks a whole file image and describes it; reads the header alone. `source` names the file in errors. Throws Error
// for: fewer than 8 bytes, a header length of 0, beyond 100 MB or beyond the file, a header that is not one JSON
// object, unknown dtypes, extents that overflow, byte ranges that are outside the file, of another size than shape and
// dtype give, overlapping, or not covering the file, and duplicate names.
SafetensorsContent parse_safetensors(std::span<const std::byte> file, std::string_view source);

// A mapped file and its tensors. Movable; views stay valid when it is moved, and as long as it lives.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const MappedFile& mapping() const noexcept { return mapping_; }
  const std::filesystem::path& path() const noexcept { return mapping_.path(); }
  const std::vector<SafetensorsEntry>& entries() const noexcept { return content_.entries; }
  const std::vector<std::pair<std::string, std::string>>& metadata() const noexcept { return content_.metadata; }
  const SafetensorsEntry* find(std::string_view name) const noexcept;  // null when absent
  const SafetensorsEntry& at(std::string_view name) const;             // Error naming file and tensor when absent

 private:
  MappedFile mapping_;
  SafetensorsContent content_;
};

// The format's spelling: "BF16".
std::string_view safetensors_dtype(DType dtype) noexcept;

}  // namespace sluice

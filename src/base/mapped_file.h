// A file mapped read-only: pages come in as they are touched and can be dropped again.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace sluice {

// Movable, not copyable. Throws Error naming the file when it cannot be opened, is not a regular file, or cannot be
// mapped.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  const std::filesystem::path& path() const noexcept { return path_; }
  // The open descriptor, for reflinks and copy_file_range.
  int descriptor() const noexcept { return descriptor_; }
  // Lets the kernel drop the resident pages that lie wholly inside `range` (a part of bytes()).
  void release(std::span<const std::byte> range) const noexcept;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace sluice

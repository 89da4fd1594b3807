// Any bytes are either a safetensors file, whose tensors lie inside it one after the other, or an Error of one line.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "checkpoint/safetensors.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check(std::span<const std::byte> file) {
  try {
    const sluice::SafetensorsContent content = sluice::parse_safetensors(file, "file");
    std::uint64_t held = 0;
    const std::string* last = nullptr;
    for (const sluice::SafetensorsEntry& entry : content.entries) {
      const auto bytes = sluice::byte_count(entry.view.shape, entry.view.dtype);
      require(bytes && *bytes == entry.view.bytes.size());
      require(entry.offset <= file.size() && entry.view.bytes.size() <= file.size() - entry.offset);
      require(entry.view.bytes.data() == file.data() + entry.offset);
      require(last == nullptr || *last < entry.name);
      last = &entry.name;
      held += *bytes;
    }
    std::uint64_t header = 0;
    std::memcpy(&header, file.data(), sizeof header);
    require(held + header + sizeof header == file.size());
  } catch (const sluice::Error& error) {
    require(std::strchr(error.what(), '\n') == nullptr && std::strlen(error.what()) < 4096);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  check(bytes);
  // The same bytes as a header of the right length: mutations then reach the header's contents.
  std::vector<std::byte> file(sizeof(std::uint64_t) + size);
  const std::uint64_t length = size;
  std::memcpy(file.data(), &length, sizeof length);
  std::copy(bytes.begin(), bytes.end(), file.begin() + sizeof length);
  if (size > 0) check(file);
  return 0;
}

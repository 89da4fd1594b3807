// One file written front to back, hashed on the way, by a thread of its own while the caller makes the next bytes.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "package/manifest.h"

namespace sluice {

// Large sequential writes from a small ring of buffers: take acquire(), fill it, submit(). At most kBuffers are alive.
class FileWriter {
 public:
  static constexpr std::size_t kBufferBytes = std::size_t{4} << 20;
  static constexpr int kBuffers = 4;

  // Creates the file, which must not exist. Throws Error naming it. With `sync`, finish() waits until the disk has it all,
  // and the disk is set to work early, so that there is little left to wait for.
  FileWriter(std::filesystem::path path, bool sync);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  // An empty buffer of kBufferBytes; waits while all are being written. Throws what the writing thread met.
  std::span<std::byte> acquire();
  // Hands over the first `bytes` of the buffer last acquired.
  void submit(std::size_t bytes);
  // For small things: copies through buffers.
  void append(std::span<const std::byte> bytes);
  // Makes the next `bytes` of the file share the blocks of another file, if the file system can (FICLONERANGE);
  // offset() and the source offset must be multiples of kCloneBlock, like `bytes`. False, with nothing changed, when it
  // cannot. The caller then reads those bytes all the same and passes them, in order, to account(), for the hash.
  bool clone(int descriptor, std::uint64_t source_offset, std::uint64_t bytes);
  void account(std::span<const std::byte> cloned);
  static constexpr std::uint64_t kCloneBlock = 4096;

  // Bytes handed over so far: the offset of what comes next.
  std::uint64_t offset() const noexcept { return offset_; }
  // Waits for everything, closes, and tells name, size and hash.
  FileInfo finish();

 private:
  struct Pending {
    int buffer;
    std::size_t bytes;
  };
  void run();
  void write_all(std::span<const std::byte> bytes);
  void drain();

  std::filesystem::path path_;
  bool sync_;
  int descriptor_ = -1;
  std::uint64_t offset_ = 0;
  std::uint64_t written_ = 0;
  Xxh3 hash_;
  std::vector<std::vector<std::byte>> buffers_;
  int current_ = -1;
  bool can_clone_ = true;  // until the file system says otherwise

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<int> free_;
  std::deque<Pending> pending_;
  bool closing_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace sluice

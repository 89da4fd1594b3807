#include "export/file_writer.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace sluice {

FileWriter::FileWriter(std::filesystem::path path, bool sync) : path_(std::move(path)), sync_(sync) {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("{}: cannot be made: {}", path_.string(), std::strerror(errno));
  buffers_.resize(kBuffers);
  for (int i = 0; i < kBuffers; ++i) free_.push_back(i);
  thread_ = std::thread([this] { run(); });
}

FileWriter::~FileWriter() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    pending_.clear();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::span<std::byte> FileWriter::acquire() {
  if (current_ < 0) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !free_.empty() || failure_; });
    if (failure_) std::rethrow_exception(failure_);
    current_ = free_.front();
    free_.pop_front();
  }
  auto& buffer = buffers_[static_cast<std::size_t>(current_)];
  if (buffer.empty()) buffer.resize(kBufferBytes);
  return buffer;
}

void FileWriter::submit(std::size_t bytes) {
  SLUICE_CHECK(current_ >= 0 && bytes <= kBufferBytes);
  {
    const std::lock_guard lock(mutex_);
    pending_.push_back({std::exchange(current_, -1), bytes});
  }
  changed_.notify_all();
  offset_ += bytes;
}

void FileWriter::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::span<std::byte> buffer = acquire();
    const std::size_t count = std::min(buffer.size(), bytes.size());
    std::memcpy(buffer.data(), bytes.data(), count);
    submit(count);
    bytes = bytes.subspan(count);
  }
}

// Waits until everything handed over is written.
void FileWriter::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ || free_.size() == kBuffers; });
  if (failure_) std::rethrow_exception(failure_);
}

bool FileWriter::clone(int descriptor, std::uint64_t source_offset, std::uint64_t bytes) {
  SLUICE_CHECK(current_ < 0 && offset_ % kCloneBlock == 0 && source_offset % kCloneBlock == 0 &&
               bytes % kCloneBlock == 0);
  if (!can_clone_) return false;
  drain();
  file_clone_range range{};
  range.src_fd = descriptor;
  range.src_offset = source_offset;
  range.src_length = bytes;
  range.dest_offset = offset_;
  if (::ioctl(descriptor_, FICLONERANGE, &range) != 0) {
    can_clone_ = false;
    return false;
  }
  offset_ += bytes;
  written_ += bytes;
  if (::lseek(descriptor_, static_cast<off_t>(offset_), SEEK_SET) < 0)
    fail("{}: cannot be positioned: {}", path_.string(), std::strerror(errno));
  return true;
}

void FileWriter::account(std::span<const std::byte> cloned) { hash_.update(cloned); }

FileInfo FileWriter::finish() {
  drain();
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (sync_ && ::fdatasync(descriptor_) != 0)
    fail("{}: cannot be synced to disk: {}", path_.string(), std::strerror(errno));
  if (::close(std::exchange(descriptor_, -1)) != 0)
    fail("{}: cannot be closed: {}", path_.string(), std::strerror(errno));
  return {path_.filename().string(), written_, hash_.hex()};
}

void FileWriter::run() {
  for (;;) {
    Pending next{};
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closing_ || !pending_.empty(); });
      if (pending_.empty()) return;
      next = pending_.front();
      pending_.pop_front();
    }
    std::exception_ptr failure;
    try {
      write_all(std::span(buffers_[static_cast<std::size_t>(next.buffer)]).first(next.bytes));
    } catch (...) {
      failure = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      free_.push_back(next.buffer);
      if (failure && !failure_) failure_ = failure;
    }
    changed_.notify_all();
    if (failure) return;
  }
}

void FileWriter::write_all(std::span<const std::byte> bytes) {
  hash_.update(bytes);
  const std::uint64_t start = written_;
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int error = count < 0 ? errno : ENOSPC;
      fail("{}: cannot be written after {} bytes: {}{}", path_.string(), written_, std::strerror(error),
           error == ENOSPC ? "; free space on that disk and run the export again" : "");
    }
    written_ += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  if (sync_) {
    ::sync_file_range(descriptor_, static_cast<off64_t>(start), static_cast<off64_t>(written_ - start),
                      SYNC_FILE_RANGE_WRITE);
  }
}

}  // namespace sluice

#include "base/executor.h"

#include <chrono>

#include "base/error.h"

namespace sluice {
namespace {

constexpr std::chrono::microseconds kSpin{50};
constexpr int kPauses = 32;  // one or two microseconds; then whoever else wants the core may have it

// Waits until the word is no longer `old`, at first awake, then asleep until somebody notifies; returns its value.
std::uint32_t await_change(const std::atomic<std::uint32_t>& word, std::uint32_t old) noexcept {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPauses; ++i) {
      const std::uint32_t value = word.load(std::memory_order_acquire);
      if (value != old) return value;
      __builtin_ia32_pause();
    }
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < end);
  word.wait(old, std::memory_order_acquire);
  return word.load(std::memory_order_acquire);
}

}  // namespace

void SerialExecutor::run(std::int64_t count, Item item, void* context) noexcept {
  for (std::int64_t i = 0; i < count; ++i) item(context, i);
}

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  announced_.fetch_add(1);
  announced_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

// A worker that wakes late finds the run closed, or the next one open, and helps there.
void ThreadPool::work() noexcept {
  std::uint32_t seen = 0;
  for (;;) {
    seen = await_change(announced_, seen);
    if (stop_) return;
    if (!enter()) continue;
    take_items();
    leave();
  }
}

bool ThreadPool::enter() noexcept {
  std::uint32_t inside = inside_.load(std::memory_order_relaxed);
  while ((inside & kClosed) == 0) {
    if (inside_.compare_exchange_weak(inside, inside + 1, std::memory_order_acquire)) return true;
  }
  return false;
}

void ThreadPool::leave() noexcept {
  if (inside_.fetch_sub(1, std::memory_order_release) == (kClosed | 1)) inside_.notify_one();
}

void ThreadPool::take_items() noexcept {
  for (std::int64_t i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) item_(context_, i);
}

void ThreadPool::run(std::int64_t count, Item item, void* context) noexcept {
  if (workers_.empty() || count <= 1) {
    for (std::int64_t i = 0; i < count; ++i) item(context, i);
    return;
  }
  SLUICE_CHECK(inside_.load() == kClosed);
  count_ = count;
  item_ = item;
  context_ = context;
  next_.store(0, std::memory_order_relaxed);
  inside_.store(0, std::memory_order_release);
  announced_.fetch_add(1);
  announced_.notify_all();
  take_items();
  // No item is left to take. Those taken are done when their workers have left.
  std::uint32_t inside = inside_.fetch_or(kClosed, std::memory_order_acq_rel) | kClosed;
  while (inside != kClosed) inside = await_change(inside_, inside);
}

}  // namespace sluice

#include "base/executor.h"

#include <atomic>

namespace sluice {

void SerialExecutor::run(std::int64_t count, Item item, void* context) noexcept {
  for (std::int64_t i = 0; i < count; ++i) item(context, i);
}

// Shared with the workers, so that one that wakes late finds a finished job rather than a freed one.
struct ThreadPool::Job {
  std::int64_t count;
  Item item;
  void* context;
  std::atomic<std::int64_t> next{0};
  std::atomic<std::int64_t> finished{0};

  // Returns true for the caller that finished the last item.
  bool help() {
    bool last = false;
    for (std::int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
      item(context, i);
      last = finished.fetch_add(1) + 1 == count;
    }
    return last;
  }
};

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::work() {
  std::shared_ptr<Job> seen;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || (job_ && job_ != seen); });
      if (stop_) return;
      seen = job_;
    }
    if (seen->help()) {
      const std::lock_guard lock(mutex_);
      done_.notify_all();
    }
  }
}

void ThreadPool::run(std::int64_t count, Item item, void* context) noexcept {
  if (count <= 0) return;
  if (workers_.empty() || count == 1) {
    for (std::int64_t i = 0; i < count; ++i) item(context, i);
    return;
  }
  auto job = std::make_shared<Job>();
  job->count = count;
  job->item = item;
  job->context = context;
  {
    const std::lock_guard lock(mutex_);
    job_ = job;
  }
  wake_.notify_all();
  job->help();
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return job->finished.load() == count; });
  job_.reset();
}

}  // namespace sluice

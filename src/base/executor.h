// Who runs the work items of a kernel: ONNX Runtime's pool, our own, or nobody else.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace sluice {

// Runs independent items. Items must not depend on the order or the thread that runs them; a kernel cuts them by shape,
// never by thread count, so that its result does not depend on the executor.
class Executor {
 public:
  using Item = void (*)(void* context, std::int64_t index) noexcept;

  virtual ~Executor() = default;
  // Calls item(context, i) once for every i in [0, count) and returns when all are done.
  virtual void run(std::int64_t count, Item item, void* context) noexcept = 0;
};

// Calls body(i), a noexcept callable, for every i in [0, count).
template <typename Body>
void parallel_for(Executor& executor, std::int64_t count, Body&& body) noexcept {
  using Callable = std::remove_reference_t<Body>;
  executor.run(
      count, [](void* context, std::int64_t index) noexcept { (*static_cast<Callable*>(context))(index); },
      const_cast<std::remove_const_t<Callable>*>(&body));
}

class SerialExecutor final : public Executor {
 public:
  void run(std::int64_t count, Item item, void* context) noexcept override;
};

// A pool of `threads - 1` workers beside the calling thread. One run at a time; run may not be called from an item.
class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  void run(std::int64_t count, Item item, void* context) noexcept override;
  int threads() const noexcept { return static_cast<int>(workers_.size()) + 1; }

 private:
  struct Job;
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::shared_ptr<Job> job_;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace sluice

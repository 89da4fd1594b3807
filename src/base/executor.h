// Who runs the work items of a kernel: ONNX Runtime's pool, our own, or nobody else.
#pragma once

#include <atomic>
#include <cstdint>
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

// A pool of `threads - 1` workers beside the calling thread. One run at a time, and none from inside an item: either is a bug
// and ends the program. A worker looks out for the next run for some tens of microseconds before it sleeps, for waking it
// takes as long as a short kernel.
class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  void run(std::int64_t count, Item item, void* context) noexcept override;
  int threads() const noexcept { return static_cast<int>(workers_.size()) + 1; }

 private:
  static constexpr std::uint32_t kClosed = 1u << 31;

  void work() noexcept;
  bool enter() noexcept;
  void leave() noexcept;
  void take_items() noexcept;

  // The run at hand: written while it is closed and nobody is inside, read only inside.
  std::int64_t count_ = 0;
  Item item_ = nullptr;
  void* context_ = nullptr;
  // Each on a cache line of its own, for one is written while others wait on another.
  alignas(64) std::atomic<std::int64_t> next_{0};
  alignas(64) std::atomic<std::uint32_t> inside_{kClosed};  // workers inside the run; kClosed: no more may enter
  alignas(64) std::atomic<std::uint32_t> announced_{0};     // runs so far, and one more for the end
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace sluice

#include "base/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>
#include <vector>

namespace sluice {
namespace {

TEST(ThreadPool, RunsEveryItemOnceWhateverTheThreads) {
  for (int threads = 1; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const std::int64_t count : {0, 1, 2, 3, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<std::size_t>(count));
      parallel_for(pool, count, [&](std::int64_t i) noexcept { hits[static_cast<std::size_t>(i)].fetch_add(1); });
      for (const auto& hit : hits) EXPECT_EQ(hit.load(), 1);
    }
  }
}

// What the caller writes before a run every item sees, and what the items write the caller sees after it.
void expect_exchange(ThreadPool& pool, int rounds, std::chrono::microseconds pause) {
  std::vector<std::int64_t> in(4), out(4);
  for (int round = 0; round < rounds; ++round) {
    std::fill(in.begin(), in.end(), round);
    parallel_for(pool, 4, [&](std::int64_t i) noexcept {
      const auto at = static_cast<std::size_t>(i);
      out[at] = in[at] + i;
    });
    ASSERT_EQ(out, (std::vector<std::int64_t>{round, round + 1, round + 2, round + 3}));
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
  }
}

TEST(ThreadPool, ManyShortRunsFollowOneAnother) {
  for (const int threads : {2, 3, 8}) {
    ThreadPool pool(threads);
    expect_exchange(pool, 5000, std::chrono::microseconds(0));
  }
}

TEST(ThreadPool, RunsFindWorkersAsleepOrAboutToSleep) {
  for (const int threads : {2, 8}) {
    ThreadPool pool(threads);
    for (const int pause : {20, 50, 60, 1000}) expect_exchange(pool, 50, std::chrono::microseconds(pause));
  }
}

TEST(ThreadPool, WaitsForItemsThatTakeLongerThanItStaysAwake) {
  ThreadPool pool(2);
  std::atomic<int> done{0};
  parallel_for(pool, 8, [&](std::int64_t i) noexcept {
    std::this_thread::sleep_for(std::chrono::milliseconds(i));
    done.fetch_add(1);
  });
  EXPECT_EQ(done.load(), 8);
}

TEST(ThreadPool, EndsWhetherOrNotItEverRan) {
  for (int round = 0; round < 100; ++round) {
    ThreadPool pool(3);
    if (round % 2 == 0) parallel_for(pool, 3, [](std::int64_t) noexcept {});
  }
}

TEST(ThreadPool, SleepsWhenIdle) {
  ThreadPool pool(4);
  parallel_for(pool, 4, [](std::int64_t) noexcept {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 20);
}

TEST(ThreadPoolDeathTest, RunFromAnItemIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        ThreadPool pool(2);
        // From one item alone: two threads that end the program at once spoil each other's message.
        parallel_for(pool, 2, [&](std::int64_t item) noexcept {
          if (item == 0) parallel_for(pool, 2, [](std::int64_t) noexcept {});
        });
      },
      "internal error");
}

TEST(SerialExecutor, RunsInOrder) {
  SerialExecutor serial;
  std::vector<std::int64_t> seen;
  parallel_for(serial, 4, [&](std::int64_t i) noexcept { seen.push_back(i); });
  EXPECT_EQ(seen, (std::vector<std::int64_t>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace sluice

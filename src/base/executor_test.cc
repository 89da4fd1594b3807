#include "base/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

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

TEST(ThreadPool, ManyShortRunsFollowOneAnother) {
  ThreadPool pool(3);
  std::vector<std::int64_t> sums(3);
  for (int round = 0; round < 5000; ++round) {
    parallel_for(pool, 3, [&](std::int64_t i) noexcept { sums[static_cast<std::size_t>(i)] += i; });
  }
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), std::int64_t{0}), 5000 * 3);
}

TEST(SerialExecutor, RunsInOrder) {
  SerialExecutor serial;
  std::vector<std::int64_t> seen;
  parallel_for(serial, 4, [&](std::int64_t i) noexcept { seen.push_back(i); });
  EXPECT_EQ(seen, (std::vector<std::int64_t>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace sluice

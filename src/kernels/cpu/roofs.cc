#include "kernels/cpu/roofs.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace sluice {

namespace avx2 {
double fma_loop(long iterations, float* sink) noexcept;
void read_loop(const float* data, std::size_t count, float* sink) noexcept;
void rmw_loop(float* data, std::size_t count) noexcept;
}  // namespace avx2
namespace avx512 {
double fma_loop(long iterations, float* sink) noexcept;
void read_loop(const float* data, std::size_t count, float* sink) noexcept;
void rmw_loop(float* data, std::size_t count) noexcept;
}  // namespace avx512

namespace {

constexpr std::size_t kGrain = 64 << 10;  // floats a work item
constexpr int kPasses = 12;

struct alignas(64) Sink {
  float lanes[16] = {};
};

// Shortest of kPasses runs, in seconds.
template <typename Body>
double best_seconds(Body&& body) {
  double best = 1e30;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

Roofs measure_roofs(Level level, ThreadPool& pool, std::size_t bytes) {
  const bool wide = level == Level::avx512;
  const auto fma_loop = wide ? avx512::fma_loop : avx2::fma_loop;
  const auto read_loop = wide ? avx512::read_loop : avx2::read_loop;
  const auto rmw_loop = wide ? avx512::rmw_loop : avx2::rmw_loop;
  const int threads = pool.threads();
  std::vector<Sink> sinks(static_cast<std::size_t>(threads));
  std::vector<double> operations(static_cast<std::size_t>(threads));

  Roofs roofs;
  roofs.threads = threads;
  const double fma_seconds = best_seconds([&] {
    parallel_for(pool, threads, [&](std::int64_t i) noexcept {
      const auto slot = static_cast<std::size_t>(i);
      operations[slot] = fma_loop(4'000'000, sinks[slot].lanes);
    });
  });
  roofs.fma_gflops = operations[0] * threads / fma_seconds / 1e9;

  const std::size_t items = std::max<std::size_t>(bytes / sizeof(float) / kGrain, 1);
  std::vector<float> buffer(items * kGrain, 1.0f);
  std::vector<Sink> item_sinks(items);
  const double total = static_cast<double>(buffer.size() * sizeof(float));
  const double read_seconds = best_seconds([&] {
    parallel_for(pool, static_cast<std::int64_t>(items), [&](std::int64_t i) noexcept {
      const auto item = static_cast<std::size_t>(i);
      read_loop(buffer.data() + item * kGrain, kGrain, item_sinks[item].lanes);
    });
  });
  roofs.read_gbs = total / read_seconds / 1e9;
  const double rmw_seconds = best_seconds([&] {
    parallel_for(pool, static_cast<std::int64_t>(items), [&](std::int64_t i) noexcept {
      rmw_loop(buffer.data() + static_cast<std::size_t>(i) * kGrain, kGrain);
    });
  });
  roofs.rmw_gbs = 2 * total / rmw_seconds / 1e9;
  return roofs;
}

std::string describe(Level level, const Roofs& roofs) {
  return fmt::format("{}, {} thread{}: {:.0f} GFLOP/s f32 FMA, {:.1f} GB/s read, {:.1f} GB/s read-modify-write",
                     level_name(level), roofs.threads, roofs.threads == 1 ? "" : "s", roofs.fma_gflops, roofs.read_gbs,
                     roofs.rmw_gbs);
}

}  // namespace sluice

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

constexpr std::size_t kGrain = 16 << 10;  // floats a work item
constexpr std::size_t kBlock = 64;        // items timed together: 4 MiB, a layer's worth
constexpr int kPasses = 12;
constexpr int kFmaRuns = 300;
constexpr long kFmaIterations = 200'000;  // a fraction of a millisecond, so that some runs meet no other program

struct alignas(64) Sink {
  float lanes[16] = {};
};

template <typename Body>
double seconds_of(Body&& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double measure_fma(double (*loop)(long, float*) noexcept, ThreadPool& pool) {
  const int threads = pool.threads();
  std::vector<Sink> sinks(static_cast<std::size_t>(threads));
  std::vector<double> operations(static_cast<std::size_t>(threads));
  double best = 1e30;
  for (int run = 0; run < kFmaRuns; ++run) {
    best = std::min(best, seconds_of([&] {
                      parallel_for(pool, threads, [&](std::int64_t i) noexcept {
                        const auto slot = static_cast<std::size_t>(i);
                        operations[slot] = loop(kFmaIterations, sinks[slot].lanes);
                      });
                    }));
  }
  return operations[0] * threads / best;
}

// Bytes a second of `item(first float, sink)` over blocks of a buffer, every block cold when its turn comes.
template <typename Item>
double measure_bandwidth(std::vector<float>& buffer, ThreadPool& pool, Item&& item) {
  std::vector<Sink> sinks(kBlock);
  double best = 1e30;
  for (int pass = 0; pass < kPasses; ++pass) {
    for (std::size_t at = 0; at < buffer.size(); at += kBlock * kGrain) {
      best = std::min(best, seconds_of([&] {
                        parallel_for(pool, kBlock, [&](std::int64_t i) noexcept {
                          const auto slot = static_cast<std::size_t>(i);
                          item(buffer.data() + at + slot * kGrain, sinks[slot].lanes);
                        });
                      }));
    }
  }
  return static_cast<double>(kBlock * kGrain * sizeof(float)) / best;
}

}  // namespace

Roofs measure_roofs(Level level, ThreadPool& pool, std::size_t bytes) {
  const bool wide = level == Level::avx512;
  const auto fma_loop = wide ? avx512::fma_loop : avx2::fma_loop;
  const auto read_loop = wide ? avx512::read_loop : avx2::read_loop;
  const auto rmw_loop = wide ? avx512::rmw_loop : avx2::rmw_loop;
  Roofs roofs;
  roofs.threads = pool.threads();
  roofs.fma_gflops = measure_fma(fma_loop, pool) / 1e9;
  const std::size_t blocks = std::max<std::size_t>(bytes / sizeof(float) / (kBlock * kGrain), 1);
  std::vector<float> buffer(blocks * kBlock * kGrain, 1.0f);
  roofs.read_gbs = measure_bandwidth(buffer, pool, [&](float* at, float* sink) { read_loop(at, kGrain, sink); }) / 1e9;
  roofs.rmw_gbs = 2 * measure_bandwidth(buffer, pool, [&](float* at, float*) { rmw_loop(at, kGrain); }) / 1e9;
  return roofs;
}

void read_through(Level level, std::span<const std::byte> bytes, Executor& executor) noexcept {
  const auto read_loop = level == Level::avx512 ? avx512::read_loop : avx2::read_loop;
  const auto* data = reinterpret_cast<const float*>(bytes.data());
  const std::size_t count = bytes.size() / sizeof(float);
  parallel_for(executor, static_cast<std::int64_t>((count + kGrain - 1) / kGrain), [&](std::int64_t i) noexcept {
    Sink sink;
    const std::size_t first = static_cast<std::size_t>(i) * kGrain;
    read_loop(data + first, std::min(kGrain, count - first), sink.lanes);
  });
}

std::string describe(Level level, const Roofs& roofs) {
  return fmt::format("{}, {} thread{}: {:.0f} GFLOP/s f32 FMA, {:.1f} GB/s read, {:.1f} GB/s read-modify-write",
                     level_name(level), roofs.threads, roofs.threads == 1 ? "" : "s", roofs.fma_gflops, roofs.read_gbs,
                     roofs.rmw_gbs);
}

}  // namespace sluice

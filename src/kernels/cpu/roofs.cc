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
namespace amx {
double tile_loop(long iterations) noexcept;
}

namespace {

constexpr std::size_t kBlock = 1 << 20;   // floats timed together: 4 MiB, a layer's worth
constexpr std::size_t kUnit = 64;         // floats; shares are multiples of it
constexpr std::size_t kGrain = 16 << 10;  // floats a work item, where threads are not counted
constexpr int kPasses = 12;
constexpr int kFmaRuns = 300;
constexpr long kFmaIterations = 200'000;  // a fraction of a millisecond, so that some runs meet no other program
constexpr long kTileIterations = 40'000;

struct alignas(64) Sink {
  float lanes[16] = {};
};

template <typename Body>
double seconds_of(Body&& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Operations a second of loop(sink) on every thread at once.
template <typename Loop>
double measure_arithmetic(Loop loop, ThreadPool& pool) {
  const int threads = pool.threads();
  std::vector<Sink> sinks(static_cast<std::size_t>(threads));
  std::vector<double> operations(static_cast<std::size_t>(threads));
  double best = 1e30;
  for (int run = 0; run < kFmaRuns; ++run) {
    best = std::min(best, seconds_of([&] {
                      parallel_for(pool, threads, [&](std::int64_t i) noexcept {
                        const auto slot = static_cast<std::size_t>(i);
                        operations[slot] = loop(sinks[slot].lanes);
                      });
                    }));
  }
  return operations[0] * threads / best;
}

// Bytes a second of `share(first float, floats, sink)` over blocks of a buffer, every block cold when its turn comes; a
// thread's share of a block is one piece.
template <typename Share>
double measure_bandwidth(std::vector<float>& buffer, ThreadPool& pool, Share&& share) {
  const auto threads = static_cast<std::size_t>(pool.threads());
  const std::size_t floats = kBlock / threads / kUnit * kUnit;
  std::vector<Sink> sinks(threads);
  double best = 1e30;
  for (int pass = 0; pass < kPasses; ++pass) {
    for (std::size_t at = 0; at + kBlock <= buffer.size(); at += kBlock) {
      best = std::min(best, seconds_of([&] {
                        parallel_for(pool, pool.threads(), [&](std::int64_t i) noexcept {
                          const auto slot = static_cast<std::size_t>(i);
                          share(buffer.data() + at + slot * floats, floats, sinks[slot].lanes);
                        });
                      }));
    }
  }
  return static_cast<double>(threads * floats * sizeof(float)) / best;
}

}  // namespace

Roofs measure_roofs(Level level, ThreadPool& pool, std::size_t bytes) {
  const bool wide = level >= Level::avx512;
  const auto fma_loop = wide ? avx512::fma_loop : avx2::fma_loop;
  const auto read_loop = wide ? avx512::read_loop : avx2::read_loop;
  const auto rmw_loop = wide ? avx512::rmw_loop : avx2::rmw_loop;
  Roofs roofs;
  roofs.threads = pool.threads();
  const auto multiply_add = [&](float* sink) noexcept { return fma_loop(kFmaIterations, sink); };
  roofs.fma_gflops = measure_arithmetic(multiply_add, pool) / 1e9;
  const auto multiply_tiles = [](float*) noexcept { return amx::tile_loop(kTileIterations); };
  if (level == Level::amx) roofs.tile_gflops = measure_arithmetic(multiply_tiles, pool) / 1e9;
  std::vector<float> buffer(std::max<std::size_t>(bytes / sizeof(float) / kBlock, 1) * kBlock, 1.0f);
  const auto read = [&](float* at, std::size_t floats, float* sink) { read_loop(at, floats, sink); };
  const auto rewrite = [&](float* at, std::size_t floats, float*) { rmw_loop(at, floats); };
  roofs.read_gbs = measure_bandwidth(buffer, pool, read) / 1e9;
  roofs.rmw_gbs = 2 * measure_bandwidth(buffer, pool, rewrite) / 1e9;
  return roofs;
}

void read_through(Level level, std::span<const std::byte> bytes, Executor& executor) noexcept {
  const auto read_loop = level >= Level::avx512 ? avx512::read_loop : avx2::read_loop;
  const auto* data = reinterpret_cast<const float*>(bytes.data());
  const std::size_t count = bytes.size() / sizeof(float);
  parallel_for(executor, static_cast<std::int64_t>((count + kGrain - 1) / kGrain), [&](std::int64_t i) noexcept {
    Sink sink;
    const std::size_t first = static_cast<std::size_t>(i) * kGrain;
    read_loop(data + first, std::min(kGrain, count - first), sink.lanes);
  });
}

std::string describe(Level level, const Roofs& roofs) {
  const std::string tiles =
      roofs.tile_gflops > 0 ? fmt::format(", {:.0f} GFLOP/s f32 by bf16 in tiles", roofs.tile_gflops) : std::string();
  return fmt::format("{}, {} thread{}: {:.0f} GFLOP/s f32 FMA{}, {:.1f} GB/s read, {:.1f} GB/s read-modify-write",
                     level_name(level), roofs.threads, roofs.threads == 1 ? "" : "s", roofs.fma_gflops, tiles,
                     roofs.read_gbs, roofs.rmw_gbs);
}

}  // namespace sluice

// What this machine can do at most, measured in the same process and at the same time as the kernels that are held
// against it.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/executor.h"
#include "kernels/cpu/level.h"

namespace sluice {

// Figures of all threads of the pool together.
struct Roofs {
  int threads = 1;
  double fma_gflops = 0;   // f32 fused multiply-adds, two operations each, at the level's vector width
  double tile_gflops = 0;  // f32 by bf16 products in AMX's tiles, exact as Linear takes them; 0 below that level
  double read_gbs = 0;     // bytes read a second / 1e9, from a buffer of `bytes`
  double rmw_gbs = 0;      // bytes read + bytes written a second / 1e9, updating such a buffer in place
};

// Best of many short runs each, so that a busy machine still shows its roofs; takes about a second. `bytes`: the buffer's
// size, larger than the caches unless the kernel's own working set is not. Level::scalar is measured as avx2.
Roofs measure_roofs(Level level, ThreadPool& pool, std::size_t bytes = std::size_t{256} << 20);

// Reads all bytes once, as the read roof is measured: for a roof in turns with a kernel, over the very data it reads.
// A multiple of 256 bytes.
void read_through(Level level, std::span<const std::byte> bytes, Executor& executor) noexcept;

// "avx512, 2 threads: 340 GFLOP/s f32 FMA, 21.3 GB/s read, 17.2 GB/s read-modify-write"
std::string describe(Level level, const Roofs& roofs);

}  // namespace sluice

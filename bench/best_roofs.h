// The best a machine showed of each roof, level by level, over measurements between those of the kernels.
#pragma once

#include <algorithm>

#include "kernels/cpu/roofs.h"

namespace sluice::bench {

class BestRoofs {
 public:
  void measure(ThreadPool& pool, std::size_t bytes = std::size_t{256} << 20) {
    for (const Level level : vector_levels()) {
      const Roofs now = measure_roofs(level, pool, bytes);
      Roofs& best = roofs_[level >= Level::avx512];
      best.threads = now.threads;
      best.fma_gflops = std::max(best.fma_gflops, now.fma_gflops);
      best.read_gbs = std::max(best.read_gbs, now.read_gbs);
      best.rmw_gbs = std::max(best.rmw_gbs, now.rmw_gbs);
    }
  }
  const Roofs& of(Level level) const { return roofs_[level >= Level::avx512]; }

 private:
  Roofs roofs_[2];
};

}  // namespace sluice::bench

// The inner loop of the roof of AMX's tiles.
#include "kernels/cpu/amx_config.h"

namespace sluice::amx {

// Products of f32 by bf16, summed in f32, that one thread can take in tiles: of each three parts (linear.h). Four chains
// cover the latency; returns the operations done, two a product.
double tile_loop(long iterations) noexcept {
  TileConfig config;
  for (int i = 0; i < 6; ++i) config.rows[i] = 16, config.row_bytes[i] = 64;
  load_config(config);
  for (long i = 0; i < iterations; ++i) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_release();
  return static_cast<double>(iterations) * 4 * (16 * 16 * 32 * 2) / 3;
}

}  // namespace sluice::amx

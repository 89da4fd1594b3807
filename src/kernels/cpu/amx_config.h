// The shapes of AMX's eight tiles (Intel SDM volume 1, "Tile configuration"). For *.amx.cc alone.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace sluice::amx {

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};  // of each tile, up to 64
  std::uint8_t rows[16] = {};        // of each tile, up to 16
};

// Zeroes the tiles. g++ 12 believes that this reads eight bytes and that a load of a tile reads nothing: what either reads
// must have been written before.
inline void load_config(const TileConfig& config) {
  asm volatile("" ::"r"(&config) : "memory");
  _tile_loadconfig(&config);
}

}  // namespace sluice::amx

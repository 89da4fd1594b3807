#include "kernels/cpu/level.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

namespace sluice {
namespace {

// Linux saves the tiles' registers only for a process that has asked for them (Documentation/arch/x86/xstate.rst). It
// refuses where it cannot, as when a thread has a signal stack too small for them.
bool runs_tiles() noexcept {
  constexpr unsigned kTileBits = 1u << 22 | 1u << 24;  // AMX-BF16 and AMX-TILE in edx of leaf 7
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & kTileBits) != kTileBits) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool runs(Level level) noexcept {
  // __builtin_cpu_supports also asks the operating system whether it saves the registers.
  switch (level) {
    case Level::scalar:
      return true;
    case Level::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
             __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    case Level::avx512:
      return runs(Level::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    case Level::amx:
      return runs(Level::avx512) && runs_tiles();
  }
  return false;
}

constexpr std::array<Level, 4> kLevels{Level::scalar, Level::avx2, Level::avx512, Level::amx};
constexpr std::array<std::string_view, 4> kNames{"scalar", "avx2", "avx512", "amx"};

}  // namespace

Level best_level() noexcept {
  Level best = Level::scalar;
  for (const Level level : kLevels) {
    if (runs(level)) best = level;
  }
  return best;
}

std::vector<Level> supported_levels() {
  std::vector<Level> levels;
  for (const Level level : kLevels) {
    if (runs(level)) levels.push_back(level);
  }
  return levels;
}

std::vector<Level> vector_levels() {
  std::vector<Level> levels = supported_levels();
  std::erase_if(levels, [](Level level) { return level == Level::scalar || level == Level::amx; });
  return levels;
}

std::string_view level_name(Level level) noexcept { return kNames[static_cast<std::size_t>(level)]; }

std::optional<Level> level_from_name(std::string_view name) noexcept {
  for (const Level level : kLevels) {
    if (level_name(level) == name) return level;
  }
  return std::nullopt;
}

}  // namespace sluice

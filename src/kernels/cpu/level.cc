#include "kernels/cpu/level.h"

#include <array>

namespace sluice {
namespace {

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
  }
  return false;
}

constexpr std::array<Level, 3> kLevels{Level::scalar, Level::avx2, Level::avx512};
constexpr std::array<std::string_view, 3> kNames{"scalar", "avx2", "avx512"};

}  // namespace

Level best_level() noexcept {
  if (runs(Level::avx512)) return Level::avx512;
  return runs(Level::avx2) ? Level::avx2 : Level::scalar;
}

std::vector<Level> supported_levels() {
  std::vector<Level> levels;
  for (const Level level : kLevels) {
    if (runs(level)) levels.push_back(level);
  }
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

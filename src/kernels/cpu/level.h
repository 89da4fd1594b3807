// Instruction-set levels of the kernels: one object a level, chosen once by CPUID, or forced by a test.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace sluice {

// scalar is the specification; avx2 needs AVX2, FMA, F16C, BMI2; avx512 needs F, BW, CD, DQ, VL beside them.
enum class Level { scalar, avx2, avx512 };

// The best level this processor and operating system support.
Level best_level() noexcept;
// Every level that runs here, scalar first: what a test loops over.
std::vector<Level> supported_levels();

std::string_view level_name(Level level) noexcept;
std::optional<Level> level_from_name(std::string_view name) noexcept;

}  // namespace sluice

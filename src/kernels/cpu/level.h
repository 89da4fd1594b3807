// Instruction-set levels of the kernels: one object a level, chosen once by CPUID, or forced by a test.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace sluice {

// scalar is the specification; avx2 needs AVX2, FMA, F16C, BMI2; avx512 needs F, BW, CD, DQ, VL beside them. amx is avx512
// but for products with bf16 weights, which it takes in AMX's tiles (linear.h); it needs AMX-TILE and AMX-BF16 too.
enum class Level { scalar, avx2, avx512, amx };

// The best level this processor and operating system support. Asks Linux to let this process use AMX's tiles.
Level best_level() noexcept;
// Every level that runs here, scalar first: what a test loops over.
std::vector<Level> supported_levels();
// Those of them at which every operator has kernels of its own: avx2, avx512.
std::vector<Level> vector_levels();

std::string_view level_name(Level level) noexcept;
std::optional<Level> level_from_name(std::string_view name) noexcept;

}  // namespace sluice

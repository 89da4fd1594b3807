// The roofs of kernels/cpu, under the name the benchmarks use.
#pragma once

#include "kernels/cpu/roofs.h"

namespace sluice::bench {
using sluice::describe;
using sluice::measure_roofs;
using sluice::Roofs;
}  // namespace sluice::bench

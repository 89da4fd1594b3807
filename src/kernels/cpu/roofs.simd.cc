// The inner loops of the roofs, once a level.
#include <hwy/highway.h>

#include <cstddef>

namespace sluice::SLUICE_LEVEL {

namespace hn = hwy::HWY_NAMESPACE;

namespace {
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr D d;
}  // namespace

// 12 independent chains cover 2 FMA ports of latency 4 or 5; returns the operations done. Each chain starts from a value
// of its own, unknown to the compiler: equal chains would be merged, and the rate of fewer instructions reported.
double fma_loop(long iterations, float* sink) noexcept {
  const V factor = hn::Set(d, 0.999f);
  const V term = hn::Set(d, 0.001f);
  const auto start = [&](float at) { return hn::Set(d, sink[0] + at); };
  V a0 = start(0), a1 = start(1), a2 = start(2), a3 = start(3), a4 = start(4), a5 = start(5);
  V a6 = start(6), a7 = start(7), a8 = start(8), a9 = start(9), a10 = start(10), a11 = start(11);
  for (long i = 0; i < iterations; ++i) {
    a0 = hn::MulAdd(a0, factor, term), a1 = hn::MulAdd(a1, factor, term), a2 = hn::MulAdd(a2, factor, term);
    a3 = hn::MulAdd(a3, factor, term), a4 = hn::MulAdd(a4, factor, term), a5 = hn::MulAdd(a5, factor, term);
    a6 = hn::MulAdd(a6, factor, term), a7 = hn::MulAdd(a7, factor, term), a8 = hn::MulAdd(a8, factor, term);
    a9 = hn::MulAdd(a9, factor, term), a10 = hn::MulAdd(a10, factor, term), a11 = hn::MulAdd(a11, factor, term);
  }
  const V low = hn::Add(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)), hn::Add(a4, a5));
  const V high = hn::Add(hn::Add(hn::Add(a6, a7), hn::Add(a8, a9)), hn::Add(a10, a11));
  hn::StoreU(hn::Add(low, high), d, sink);
  return static_cast<double>(iterations) * 12 * 2 * static_cast<double>(hn::Lanes(d));
}

// count: a multiple of 4 vectors.
void read_loop(const float* data, std::size_t count, float* sink) noexcept {
  const std::size_t lanes = hn::Lanes(d);
  V a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0;
  for (std::size_t i = 0; i < count; i += 4 * lanes) {
    a0 = hn::Add(a0, hn::LoadU(d, data + i));
    a1 = hn::Add(a1, hn::LoadU(d, data + i + lanes));
    a2 = hn::Add(a2, hn::LoadU(d, data + i + 2 * lanes));
    a3 = hn::Add(a3, hn::LoadU(d, data + i + 3 * lanes));
  }
  hn::StoreU(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)), d, sink);
}

// Fetches 16 KiB ahead: a sixth more than the hardware reaches by itself, where the read loop gains nothing by it.
void rmw_loop(float* data, std::size_t count) noexcept {
  constexpr std::size_t kLine = 16, kAhead = 4096;  // floats
  const V term = hn::Set(d, 1.0f);
  for (std::size_t line = 0; line < count; line += kLine) {
    __builtin_prefetch(data + line + kAhead, 0, 2);
    for (std::size_t i = line; i < line + kLine; i += hn::Lanes(d)) {
      hn::StoreU(hn::Sub(term, hn::LoadU(d, data + i)), d, data + i);
    }
  }
}

}  // namespace sluice::SLUICE_LEVEL

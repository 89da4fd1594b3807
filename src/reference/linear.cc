#include "reference/linear.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace sluice::reference {
namespace {

constexpr std::int64_t kRowBlock = 4;  // weight rows that share one pass over a token

// The compiler makes this file's inner loop once an instruction set, and the program takes the best. Every sum keeps its
// order, and nothing is fused: the bits are the same on all. Sanitizers cannot run before the choice is made.
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SLUICE_REFERENCE_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SLUICE_REFERENCE_CLONES
#endif

// Dot products of one token with kRowBlock weight rows. Each has a fixed number of lanes, summed at the end, so that the
// compiler can use vectors without changing the order of a sum, and rounding errors grow with the length of a lane only.
template <typename T>
[[gnu::always_inline]] inline void dot_rows_of(const T* x, const T* rows, std::int64_t n, T* sums) {
  using Vector [[gnu::vector_size(64)]] = T;
  constexpr std::int64_t kLanes = 64 / sizeof(T);
  Vector accumulators[kRowBlock] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Vector a, b;
    std::memcpy(&a, x + i, sizeof a);
    for (std::int64_t r = 0; r < kRowBlock; ++r) {
      std::memcpy(&b, rows + r * n + i, sizeof b);
      accumulators[r] += a * b;
    }
  }
  for (std::int64_t r = 0; r < kRowBlock; ++r) {
    T lanes[kLanes];
    std::memcpy(lanes, &accumulators[r], sizeof lanes);
    for (std::int64_t j = i; j < n; ++j) lanes[j - i] += x[j] * rows[r * n + j];
    for (std::int64_t width = kLanes / 2; width > 0; width /= 2) {
      for (std::int64_t l = 0; l < width; ++l) lanes[l] += lanes[l + width];
    }
    sums[r] = lanes[0];
  }
}

SLUICE_REFERENCE_CLONES void dot_rows(const float* x, const float* rows, std::int64_t n, float* sums) {
  dot_rows_of(x, rows, n, sums);
}
SLUICE_REFERENCE_CLONES void dot_rows(const double* x, const double* rows, std::int64_t n, double* sums) {
  dot_rows_of(x, rows, n, sums);
}

}  // namespace

MatrixView matrix(const CanonicalWeight& weight) {
  const std::int64_t cols = weight.shape.back();
  return {&weight, 0, static_cast<std::int64_t>(weight.elements()) / cols, cols};
}

MatrixView matrix(const CanonicalWeight& weight, std::int64_t index) {
  SLUICE_CHECK(weight.shape.size() == 3 && index >= 0 && index < weight.shape[0]);
  return {&weight, index * weight.shape[1], weight.shape[1], weight.shape[2]};
}

template <typename T>
Rows<T> linear(const Rows<T>& x, const MatrixView& w, Executor& executor) {
  SLUICE_CHECK(x.cols() == w.cols);
  Rows<T> y(x.rows(), w.rows);
  const std::int64_t blocks = (w.rows + kRowBlock - 1) / kRowBlock;
  parallel_for(executor, blocks, [&](std::int64_t block) noexcept {
    const std::int64_t first = block * kRowBlock;
    const std::int64_t rows = std::min(kRowBlock, w.rows - first);
    std::vector<T> widened(
        static_cast<std::size_t>(kRowBlock * w.cols));  // [kRowBlock, in]; rows beyond the end stay 0
    read_elements<T>(*w.weight, static_cast<std::uint64_t>((w.first + first) * w.cols),
                     std::span(widened).first(static_cast<std::size_t>(rows * w.cols)));
    for (std::int64_t t = 0; t < x.rows(); ++t) {
      std::array<T, kRowBlock> sums;
      dot_rows(x[t].data(), widened.data(), w.cols, sums.data());
      std::copy_n(sums.begin(), rows, y[t].begin() + first);
    }
  });
  return y;
}

template <typename T>
Rows<T> linear(const Rows<T>& x, const CanonicalWeight& weight, Executor& executor, const CanonicalWeight* bias) {
  Rows<T> y = linear(x, matrix(weight), executor);
  if (bias != nullptr) {
    const std::vector<T> b = read_all<T>(*bias);
    for (std::int64_t t = 0; t < y.rows(); ++t) {
      for (std::size_t i = 0; i < b.size(); ++i) y[t][i] += b[i];
    }
  }
  return y;
}

template Rows<float> linear(const Rows<float>&, const MatrixView&, Executor&);
template Rows<double> linear(const Rows<double>&, const MatrixView&, Executor&);
template Rows<float> linear(const Rows<float>&, const CanonicalWeight&, Executor&, const CanonicalWeight*);
template Rows<double> linear(const Rows<double>&, const CanonicalWeight&, Executor&, const CanonicalWeight*);

}  // namespace sluice::reference

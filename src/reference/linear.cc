#include "reference/linear.h"

#include <algorithm>
#include <array>

namespace sluice::reference {
namespace {

constexpr std::int64_t kRowBlock = 4;  // weight rows that share one pass over a token

// Dot products of one token with four weight rows. Each has a fixed number of lanes, summed at the end, so that the
// compiler can use vectors without changing the order of a sum, and rounding errors grow with the length of a lane
// only.
template <typename T>
std::array<T, kRowBlock> dot_rows(const T* x, const T* rows, std::int64_t n) {
  constexpr std::int64_t kLanes = 32 / sizeof(T);
  T lanes[kRowBlock][kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t r = 0; r < kRowBlock; ++r) {
      for (std::int64_t l = 0; l < kLanes; ++l) lanes[r][l] += x[i + l] * rows[r * n + i + l];
    }
  }
  std::array<T, kRowBlock> sums{};
  for (std::int64_t r = 0; r < kRowBlock; ++r) {
    for (std::int64_t j = i; j < n; ++j) lanes[r][j - i] += x[j] * rows[r * n + j];
    for (std::int64_t width = kLanes / 2; width > 0; width /= 2) {
      for (std::int64_t l = 0; l < width; ++l) lanes[r][l] += lanes[r][l + width];
    }
    sums[static_cast<std::size_t>(r)] = lanes[r][0];
  }
  return sums;
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
      const auto sums = dot_rows(x[t].data(), widened.data(), w.cols);
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

// The one container of the forward pass: a row-major matrix with a row a token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"

namespace sluice::reference {

template <typename T>
class Rows {
 public:
  Rows() = default;
  Rows(std::int64_t rows, std::int64_t cols)
      : rows_(rows), cols_(cols), values_(static_cast<std::size_t>(rows * cols)) {}

  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::span<T> operator[](std::int64_t row) { return {values_.data() + row * cols_, static_cast<std::size_t>(cols_)}; }
  std::span<const T> operator[](std::int64_t row) const {
    return {values_.data() + row * cols_, static_cast<std::size_t>(cols_)};
  }
  std::span<const T> values() const { return values_; }
  std::span<T> values() { return values_; }

  // Adds rows below. An empty matrix takes the width of what comes first.
  void append(const Rows& below) {
    if (rows_ == 0) cols_ = below.cols_;
    SLUICE_CHECK(cols_ == below.cols_);
    values_.insert(values_.end(), below.values_.begin(), below.values_.end());
    rows_ += below.rows_;
  }

  // this += other, element by element: the residual connections.
  void add(const Rows& other) {
    SLUICE_CHECK(rows_ == other.rows_ && cols_ == other.cols_);
    for (std::size_t i = 0; i < values_.size(); ++i) values_[i] += other.values_[i];
  }

 private:
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
  std::vector<T> values_;
};

}  // namespace sluice::reference

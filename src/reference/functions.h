// The scalar functions of the model, as its formulas write them.
#pragma once

#include <cmath>
#include <span>

#include "architecture/hybrid_config.h"

namespace sluice::reference {

template <typename T>
T sigmoid(T x) {
  return T(1) / (T(1) + std::exp(-x));
}

template <typename T>
T silu(T x) {
  return x * sigmoid(x);
}

// log(1 + exp(x)) without overflow, and without losing small results.
template <typename T>
T softplus(T x) {
  return std::max(x, T(0)) + std::log1p(std::exp(-std::abs(x)));
}

template <typename T>
T gelu_tanh(T x) {
  constexpr double kSqrt2OverPi = 0.79788456080286535588;
  return T(0.5) * x * (T(1) + std::tanh(T(kSqrt2OverPi) * (x + T(0.044715) * x * x * x)));
}

template <typename T>
T gelu_erf(T x) {
  constexpr double kSqrtHalf = 0.70710678118654752440;
  return T(0.5) * x * (T(1) + std::erf(x * T(kSqrtHalf)));
}

template <typename T>
T activate(Activation activation, T x) {
  switch (activation) {
    case Activation::silu:
      return silu(x);
    case Activation::gelu_tanh:
      return gelu_tanh(x);
    case Activation::gelu_erf:
      return gelu_erf(x);
    case Activation::relu:
      return std::max(x, T(0));
  }
  return x;
}

// Softmax in place, with the maximum taken out first.
template <typename T>
void softmax(std::span<T> x) {
  T largest = x[0];
  for (const T value : x) largest = std::max(largest, value);
  T sum = 0;
  for (T& value : x) sum += value = std::exp(value - largest);
  for (T& value : x) value /= sum;
}

// x * rsqrt(mean(x^2) + epsilon) * weight, in place. `weight` is canonical: 1 + w where the checkpoint is zero-centred.
template <typename T>
void rms_norm(std::span<T> x, std::span<const T> weight, double epsilon) {
  T squares = 0;
  for (const T value : x) squares += value * value;
  const T scale = T(1) / std::sqrt(squares / static_cast<T>(x.size()) + static_cast<T>(epsilon));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = x[i] * scale * weight[i];
}

// x * rsqrt(sum(x^2) + epsilon) * scale, in place: the q/k normalisation of the delta rule.
template <typename T>
void l2_norm(std::span<T> x, double epsilon, double scale) {
  T squares = 0;
  for (const T value : x) squares += value * value;
  const T factor = static_cast<T>(scale) / std::sqrt(squares + static_cast<T>(epsilon));
  for (T& value : x) value *= factor;
}

}  // namespace sluice::reference

// sigmoid, tanh and elu with their derivatives, for host and device, float and double.
// Twin in plain PyTorch: torch.sigmoid, torch.tanh, torch.nn.functional.elu.
// NaN and inf appear where those put them: sigmoid is 0 where 1 / (1 + exp(-x)) overflows.
#pragma once

#include "kernels/math/exp.h"

namespace treadle::math {

namespace detail {

// exp(-|x|); 0 from where exp(|x|) overflows.
template <class T>
TREADLE_HD T exp_of_minus_magnitude(T x) {
  constexpr T log_of_largest = sizeof(T) == 4 ? T(88.72283905206835) : T(709.782712893384);
  return exp_pair<T>(-magnitude(x), -log_of_largest).exp;
}

}  // namespace detail

template <class T>
TREADLE_HD T sigmoid(T x) {
  const T e = detail::exp_of_minus_magnitude(x);
  return (x < T(0) ? e : T(1)) / (T(1) + e);
}

// sigmoid(x) and sigmoid(-x) = 1 - sigmoid(x), without cancellation. Derivative: their product.
template <class T>
struct SigmoidPair {
  T value, complement;
};

template <class T>
TREADLE_HD SigmoidPair<T> sigmoid_pair(T x) {
  const T e = detail::exp_of_minus_magnitude(x);
  const T large = T(1) / (T(1) + e);
  const T small = e * large;
  return x < T(0) ? SigmoidPair<T>{small, large} : SigmoidPair<T>{large, small};
}

// tanh(x) and 1 - |tanh(x)|, without cancellation. Derivative: complement (2 - complement).
template <class T>
struct TanhPair {
  T value, complement;
};

template <class T>
TREADLE_HD TanhPair<T> tanh_pair(T x) {
  const ExpPair<T> e = exp_pair<T>(T(-2) * magnitude(x));
  const T inverse = T(1) / (T(2) + e.expm1);
  return {with_sign_of(e.expm1 * inverse, x), T(2) * e.exp * inverse};
}

template <class T>
TREADLE_HD T tanh(T x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 4) {
    return ::tanhf(x);
  } else {
    return ::tanh(x);
  }
#else
  const T e = exp_pair<T>(T(-2) * magnitude(x)).expm1;
  return with_sign_of(e / (T(2) + e), x);
#endif
}

// elu and its slope exp(min(x, 0)), which is finite for every x.
template <class T>
struct Elu {
  T value, slope;
};

template <class T>
TREADLE_HD Elu<T> elu(T x) {
  const bool positive = x > T(0);
  const ExpPair<T> e = exp_pair<T>(positive ? T(0) : x);
  return {positive ? x : e.expm1, positive ? T(1) : e.exp};
}

}  // namespace treadle::math

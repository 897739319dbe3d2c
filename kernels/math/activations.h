// sigmoid, tanh and elu with their derivatives, for host and device, float and double. Twin in
// plain PyTorch: torch.sigmoid, torch.tanh, torch.nn.functional.elu. NaN and inf appear where they
// do in torch. To achieve this, sigmoid is 0 where exp(-x) overflows.
#pragma once

#include "kernels/math/exp.h"

namespace treadle::math {

namespace detail {

// On the host, arithmetic on subnormal numbers is a hundred times slower, or flushes them to 0, and
// then 0 times inf would be NaN. So a subnormal exp(x) is raised to the smallest normal number. The
// result is 0 only where x < zero_below.
template <class T>
TREADLE_HD T without_subnormals(T exp_x, [[maybe_unused]] T x, [[maybe_unused]] T zero_below) {
#if defined(__CUDA_ARCH__)
  return exp_x;
#else
  constexpr T least = sizeof(T) == 4 ? T(0x1p-126) : T(0x1p-1022);
  return select(x < zero_below, T(0), select(exp_x < least, least, exp_x));
#endif
}

// A complement (1 - y) near 0 would lead to subnormal gradients, so the host replaces it by 0. In
// torch, the smallest nonzero 1 - y is 2^-24 (float) or 2^-53 (double).
template <class T>
TREADLE_HD T zero_if_tiny(T complement) {
#if defined(__CUDA_ARCH__)
  return complement;
#else
  // Bit operations select the result, because compilers would turn other selects in LLTM's
  // gradients into branches.
  const bool keep = !(complement < (sizeof(T) == 4 ? T(0x1p-64) : T(0x1p-128)));
  const auto bits = bits_of(complement);
  return from_bits(bits & (decltype(bits){0} - keep));
#endif
}

// exp(-|x|); 0 where exp(|x|) overflows, and only there.
template <class T>
TREADLE_HD T exp_of_minus_magnitude(T x) {
  constexpr T log_of_largest = sizeof(T) == 4 ? T(88.72283905206835) : T(709.782712893384);
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 4) {
    const float e = exp_approximate_normal(-magnitude(x));
    // fmaxf would lose a NaN.
    return magnitude(x) > log_of_largest ? 0.0f : e < 0x1p-126f ? 0x1p-126f : e;
  }
#endif
  const T e = exp_pair<T>(-magnitude(x), -log_of_largest).exp;
  return without_subnormals(e, -magnitude(x), -log_of_largest);
}

}  // namespace detail

// The device's result is within 2 ulp unless 1 / b is subnormal; denominators here are between 1
// and 4.
TREADLE_HD float divide(float a, float b) {
#if defined(__CUDA_ARCH__)
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(b));
  return a * inverse;
#else
  return a / b;
#endif
}

TREADLE_HD double divide(double a, double b) { return a / b; }

// A fraction that is not divided yet, so that several fractions can share one division.
template <class T>
struct Fraction {
  T numerator, denominator;

  TREADLE_HD T value() const { return divide(numerator, denominator); }
};

template <class T>
TREADLE_HD Fraction<T> sigmoid(T x) {
  const T e = detail::exp_of_minus_magnitude(x);
  return {select(x < T(0), e, T(1)), T(1) + e};
}

template <class T>
TREADLE_HD Fraction<T> tanh(T x) {
  const T e = exp_pair<T>(T(-2) * magnitude(x)).expm1;
  return {with_sign_of(e, x), T(2) + e};
}

// The device's result is within about 1e-5 of tanh(x), which is enough for half types.
TREADLE_HD float tanh_of_halves(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
  float result;
  asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return tanh(x).value();
#endif
}

// A sigmoid for results that are rounded to a half type. On the device it has a shorter chain of
// instructions and is within 2^-21 of the value, unless that is below 2^-125. It is 0 only where
// exp(-x) overflows.
template <class T>
TREADLE_HD T sigmoid_of_halves(T x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 4) {
    float e, result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -0x1.715476p+0f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0f + e));
    return (x < -86.6f) & (x >= -88.72283905206835f) ? 0x1p-126f : result;
  }
#endif
  return sigmoid(x).value();
}

// sigmoid(x) and sigmoid(-x) = 1 - sigmoid(x), without cancellation. Derivative: their product.
template <class T>
struct SigmoidPair {
  T value, complement;
};

template <class T>
TREADLE_HD SigmoidPair<T> sigmoid_pair(T x) {
  const T e = detail::exp_of_minus_magnitude(x);
  const T larger = divide(T(1), T(1) + e);
  const T smaller = e * larger;
  const bool negative = x < T(0);
  return {select(negative, smaller, larger),
          select(negative, larger, detail::zero_if_tiny(smaller))};
}

// tanh(x) and 1 - |tanh(x)|, without cancellation. Derivative: complement (2 - complement).
template <class T>
struct TanhPair {
  T value, complement;
};

template <class T>
TREADLE_HD TanhPair<T> tanh_pair(T x) {
  const ExpPair<T> e = exp_pair<T>(T(-2) * magnitude(x));
  const T inverse = divide(T(1), T(2) + e.expm1);
  return {with_sign_of(e.expm1 * inverse, x), detail::zero_if_tiny(T(2) * e.exp * inverse)};
}

template <class T>
TREADLE_HD T slope(SigmoidPair<T> s) {
  return s.value * s.complement;
}

template <class T>
TREADLE_HD T slope(TanhPair<T> t) {
  return t.complement * (T(2) - t.complement);
}

// elu and its slope exp(min(x, 0)), which is finite for every x.
template <class T>
struct Elu {
  T value, slope;
};

template <class T>
TREADLE_HD Elu<T> elu(T x) {
  const bool positive = x > T(0);
  const ExpPair<T> e = exp_pair<T>(select(positive, T(0), x));
  // Below this x, exp(x) rounds to 0.
  constexpr T lowest = sizeof(T) == 4 ? T(-103.97208) : T(-745.1332191019412);
  const T slope = detail::without_subnormals(e.exp, x, lowest);
  return {select(positive, x, e.expm1), select(positive, T(1), slope)};
}

}  // namespace treadle::math

// Defines the operations that the functors of a user's formula may call. The functors are C++ code
// that treadle/_formula/source.py generates. NVRTC compiles them for a GPU, and the system's C++
// compiler for the CPU. The same operations on tensors: csrc/recurrent/formula/evaluate.cpp.
#pragma once

#ifndef __CUDACC_RTC__
#include <cmath>
#endif

#include "kernels/math/activations.h"
#include "kernels/math/c_parts.h"
#include "kernels/math/h_bound.h"

namespace treadle::math::op {

// Sums and products that the compiler does not contract to fma (on a CPU because of the flag
// -ffp-contract=off), and fma itself.
TREADLE_HD float add(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
TREADLE_HD double add(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}
TREADLE_HD float mul(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
TREADLE_HD double mul(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
template <class T>
TREADLE_HD T sub(T a, T b) {
  return add(a, -b);
}
template <class T>
TREADLE_HD T fma(T a, T b, T c) {
  return fma_if_fast(a, b, c);
}
template <class T>
TREADLE_HD T div(T a, T b) {
  return a / b;
}

template <class T>
TREADLE_HD T sigmoid(T x) {
  return math::sigmoid(x).value();
}
template <class T>
TREADLE_HD T tanh(T x) {
  return math::tanh(x).value();
}
template <class T>
TREADLE_HD T tanh_slope(T x) {
  return slope(tanh_pair(x));
}

// Variants for slopes. On a GPU, CUDA's division and log1p of floats have branches, so the compiler
// cannot mix the instructions of several functions. These have none, but longer chains of
// instructions. The quotient is within 1 ulp.
TREADLE_HD float div_of_slopes(float a, float b) {
#if defined(__CUDA_ARCH__)
  // The inverse of a subnormal number may overflow.
  const bool small = fabsf(b) < 0x1p-100f;
  const float x = small ? a * 0x1p64f : a, y = small ? b * 0x1p64f : b;
  float inverse;
  asm("rcp.approx.f32 %0, %1;" : "=f"(inverse) : "f"(y));
  const float quotient = x * inverse;
  const float better = fmaf(fmaf(-quotient, y, x), inverse, quotient);
  // The correction is NaN if a or b is 0 or inf, or if the quotient overflows.
  return better == better ? better : quotient;
#else
  return a / b;
#endif
}
TREADLE_HD double div_of_slopes(double a, double b) { return a / b; }

TREADLE_HD float log1p_of_slopes(float x) {
#if defined(__CUDA_ARCH__)
  // The sum loses x - (sum - 1) of x.
  const float sum = 1.0f + x, lost = x - (sum - 1.0f);
  const bool finite = (sum > 0.0f) & (sum < 0x1p127f);
  return ::logf(sum) + (finite ? div_of_slopes(lost, sum) : 0.0f);
#else
  return ::log1p(x);
#endif
}
TREADLE_HD double log1p_of_slopes(double x) { return ::log1p(x); }

// Variants for results that are rounded to a half type. On a GPU they are faster and less accurate.
TREADLE_HD float sigmoid_of_halves(float x) { return math::sigmoid_of_halves(x); }
TREADLE_HD float tanh_of_halves(float x) { return math::tanh_of_halves(x); }

template <class T>
TREADLE_HD T exp(T x) {
  return ::exp(x);
}
template <class T>
TREADLE_HD T expm1(T x) {
  return ::expm1(x);
}
template <class T>
TREADLE_HD T log(T x) {
  return ::log(x);
}
template <class T>
TREADLE_HD T log1p(T x) {
  return ::log1p(x);
}
template <class T>
TREADLE_HD T sqrt(T x) {
  return ::sqrt(x);
}
template <class T>
TREADLE_HD T sin(T x) {
  return ::sin(x);
}
template <class T>
TREADLE_HD T cos(T x) {
  return ::cos(x);
}
template <class T>
TREADLE_HD T erf(T x) {
  return ::erf(x);
}
template <class T>
TREADLE_HD T abs(T x) {
  return ::fabs(x);
}

}  // namespace treadle::math::op

namespace treadle::math {

// This header only declares FormulaRecurrence. The generated code defines it; kind.h has the
// definition for the host.
template <class acc, int gates, int input_gates, int state_gates, int c_parts, bool half>
struct FormulaRecurrence;

}  // namespace treadle::math

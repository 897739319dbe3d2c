// What NVRTC compiles before the functors that treadle/_formula/source.py generates: operations of
// formulas on the device. Twin: csrc/recurrent/formula/evaluate.cpp.
#pragma once

#include "kernels/math/activations.h"
#include "kernels/math/h_bound.h"

namespace treadle::math::op {

template <class T>
__device__ __forceinline__ T sigmoid(T x) {
  return math::sigmoid(x).value();
}
template <class T>
__device__ __forceinline__ T tanh(T x) {
  return math::tanh(x).value();
}
template <class T>
__device__ __forceinline__ T tanh_slope(T x) {
  return slope(tanh_pair(x));
}
// For results that are rounded to a half type.
__device__ __forceinline__ float sigmoid_of_halves(float x) { return math::sigmoid_of_halves(x); }
__device__ __forceinline__ float tanh_of_halves(float x) { return math::tanh_of_halves(x); }

template <class T>
__device__ __forceinline__ T exp(T x) {
  return ::exp(x);
}
template <class T>
__device__ __forceinline__ T expm1(T x) {
  return ::expm1(x);
}
template <class T>
__device__ __forceinline__ T log(T x) {
  return ::log(x);
}
template <class T>
__device__ __forceinline__ T log1p(T x) {
  return ::log1p(x);
}
template <class T>
__device__ __forceinline__ T sqrt(T x) {
  return ::sqrt(x);
}
template <class T>
__device__ __forceinline__ T sin(T x) {
  return ::sin(x);
}
template <class T>
__device__ __forceinline__ T cos(T x) {
  return ::cos(x);
}
template <class T>
__device__ __forceinline__ T erf(T x) {
  return ::erf(x);
}
template <class T>
__device__ __forceinline__ T abs(T x) {
  return ::fabs(x);
}

}  // namespace treadle::math::op

namespace treadle::math {

// Defined by the generated functors (kind.h).
template <class acc, int gates, int input_gates, int state_gates, bool half>
struct FormulaRecurrence;

}  // namespace treadle::math

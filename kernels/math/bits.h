// Scalar helpers of the formulas in this folder, for host and device, float and double.
// On the host each compiles to vector instructions, never to a call or a branch.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"

#ifndef __CUDA_ARCH__
#include <cstring>
#endif

namespace treadle::math {

#if defined(__CUDA_ARCH__) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define TREADLE_FAST_FMA
#endif

// An fma on the device and on hosts that have the instruction. On other hosts std::fma would be a
// slow call, so this multiplies and adds.
TREADLE_HD float fma_if_fast(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return fmaf(a, b, c);
#elif defined(TREADLE_FAST_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

TREADLE_HD double fma_if_fast(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return fma(a, b, c);
#elif defined(TREADLE_FAST_FMA)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

TREADLE_HD float magnitude(float x) {
#if defined(__CUDA_ARCH__)
  return fabsf(x);
#else
  return __builtin_fabsf(x);
#endif
}

TREADLE_HD double magnitude(double x) {
#if defined(__CUDA_ARCH__)
  return fabs(x);
#else
  return __builtin_fabs(x);
#endif
}

TREADLE_HD float with_sign_of(float x, float sign) {
#if defined(__CUDA_ARCH__)
  return copysignf(x, sign);
#else
  return __builtin_copysignf(x, sign);
#endif
}

TREADLE_HD double with_sign_of(double x, double sign) {
#if defined(__CUDA_ARCH__)
  return copysign(x, sign);
#else
  return __builtin_copysign(x, sign);
#endif
}

template <class T>
TREADLE_HD bool is_inf(T x) {
  return magnitude(x) > (sizeof(T) == 4 ? T(0x1.fffffep+127) : T(0x1.fffffffffffffp+1023));
}

TREADLE_HD uint32_t bits_of(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
#endif
}

TREADLE_HD uint64_t bits_of(double x) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint64_t>(__double_as_longlong(x));
#else
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
#endif
}

TREADLE_HD float from_bits(uint32_t x) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(x);
#else
  float value;
  std::memcpy(&value, &x, sizeof(value));
  return value;
#endif
}

TREADLE_HD double from_bits(uint64_t x) {
#if defined(__CUDA_ARCH__)
  return __longlong_as_double(static_cast<long long>(x));
#else
  double value;
  std::memcpy(&value, &x, sizeof(value));
  return value;
#endif
}

// condition ? a : b. Where there is no blend instruction for floats, compilers would emit a branch
// and not vectorise, so bit operations are used instead.
TREADLE_HD float select(bool condition, float a, float b) {
#if defined(__SSE2__) && !defined(__SSE4_1__) && !defined(__CUDA_ARCH__)
  const uint32_t mask = 0u - condition;
  return from_bits((bits_of(a) & mask) | (bits_of(b) & ~mask));
#else
  return condition ? a : b;
#endif
}

TREADLE_HD double select(bool condition, double a, double b) { return condition ? a : b; }

}  // namespace treadle::math

// Operations that round once, to nearest even (CUDA's suffix _rn). No compiler may merge or split
// them, so formulas made of them have the same bits on host and device. The exception is sqrt_near,
// which on a GPU has an error of up to 2 ulp.
#pragma once

#include "kernels/math/bits.h"

#if !defined(__CUDA_ARCH__) && !defined(TREADLE_FAST_FMA)
#include <cmath>
#endif

namespace treadle::math {

#if defined(__CUDA_ARCH__)

TREADLE_HD float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
TREADLE_HD double fma_rn(double a, double b, double c) { return __fma_rn(a, b, c); }
TREADLE_HD float add_rn(float a, float b) { return __fadd_rn(a, b); }
TREADLE_HD double add_rn(double a, double b) { return __dadd_rn(a, b); }
TREADLE_HD float mul_rn(float a, float b) { return __fmul_rn(a, b); }
TREADLE_HD double mul_rn(double a, double b) { return __dmul_rn(a, b); }
// Deterministic, within 2 ulp, and without the branches of sqrt_rn. It flushes subnormals to 0.
TREADLE_HD float sqrt_near(float a) {
  float root;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(a));
  return root;
}

#else

// The host is compiled without contraction.
TREADLE_HD float add_rn(float a, float b) { return a + b; }
TREADLE_HD double add_rn(double a, double b) { return a + b; }
TREADLE_HD float mul_rn(float a, float b) { return a * b; }
TREADLE_HD double mul_rn(double a, double b) { return a * b; }
TREADLE_HD float sqrt_near(float a) { return __builtin_sqrtf(a); }

#if defined(TREADLE_FAST_FMA)
TREADLE_HD float fma_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
TREADLE_HD double fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
// The product is exact in double. The sum is rounded to odd: where it is inexact, its last bit is
// set. Rounding it to float then gives the same result as rounding the exact sum.
TREADLE_HD float fma_rn(float a, float b, float c) {
  const double product = static_cast<double>(a) * b, sum = product + c;
  const double part = sum - product, lost = (product - (sum - part)) + (c - part);
  const uint64_t bits = bits_of(sum), even = ~bits & 1;
  // Take the odd number on the side of `sum` where the exact sum lies.
  const uint64_t inward = (bits_of(lost) ^ bits) >> 63;
  const uint64_t step = lost != 0 ? even : 0;
  const double odd = from_bits(bits + (step ^ (0 - inward)) + inward);
  return static_cast<float>(lost == lost ? odd : sum);  // lost is NaN if the sum is inf or NaN
}

TREADLE_HD double fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
#endif
#endif

template <class T>
TREADLE_HD T sub_rn(T a, T b) {
  return add_rn(a, -b);
}

}  // namespace treadle::math

// exp(x) for any x. In float, the error is at most 0.66 ulp, and the bits are the same on every
// device, because the functions of exact.h round every step. exp.h has a faster function for
// x <= 0.
#pragma once

#include "kernels/math/exact.h"

#if !defined(__CUDA_ARCH__)
#include <cmath>
#endif

namespace treadle::math {

// x = n ln 2 + r with |r| <= ln(2) / 2. 2^n is applied as two factors: the exponent of a float
// cannot encode 2^n for every n, and 2^128 is infinite although its product with exp(r) may not be.
TREADLE_HD float exp_any(float x) {
  // Beyond these limits the result is inf or 0. NaN stays NaN.
  x = select(x > 90.0f, 90.0f, x);
  x = select(x < -110.0f, -110.0f, x);
  constexpr float kRound = 0x1.8p+23f;  // adding it rounds to an integer in the low bits
  const float shifted = fma_rn(x, 0x1.715476p+0f, kRound);
  const float k = sub_rn(shifted, kRound);
  // 0x1.62e4p-1 is the first 15 bits of ln 2, so its product with k is exact, and so is `high`.
  // r + rest is the reduced argument before rounding.
  constexpr float kLow = -0x1.7f7d1cp-20f;
  const float high = fma_rn(k, -0x1.62e4p-1f, x), r = fma_rn(k, kLow, high);
  const float rest = fma_rn(k, kLow, sub_rn(high, r));
  // A fit of (exp(r) - 1 - r - r^2 / 2) / r^3. Its error changes exp(r) by at most 8e-10.
  float p = fma_rn(0x1.a0f8eep-13f, r, 0x1.6d119ap-10f);
  p = fma_rn(p, r, 0x1.1110f6p-7f);
  p = fma_rn(p, r, 0x1.555518p-5f);
  p = fma_rn(p, r, 0x1.555556p-3f);
  p = fma_rn(p, r, 0.5f);
  // 1 + r = one + lost.
  const float one = add_rn(1.0f, r), lost = sub_rn(r, sub_rn(one, 1.0f));
  const float y = add_rn(one, add_rn(lost, fma_rn(mul_rn(r, r), p, rest)));
  const int32_t n = static_cast<int32_t>(bits_of(shifted) - bits_of(kRound)), half = n >> 1;
  const float first = from_bits(static_cast<uint32_t>(half + 127) << 23);
  const float second = from_bits(static_cast<uint32_t>(n - half + 127) << 23);
  return mul_rn(mul_rn(y, first), second);
}

TREADLE_HD double exp_any(double x) {
#if defined(__CUDA_ARCH__)
  return exp(x);
#else
  return std::exp(x);
#endif
}

}  // namespace treadle::math

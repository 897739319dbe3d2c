// exp(x) and expm1(x) together, for x <= 0, from one reduction: x = k ln 2 + r, |r| <= ln(2) / 2.
// The host's code has no branches, so that loops over it vectorise; its errors are below 1 ulp. The
// device uses the special function unit in float and CUDA's own functions in double.
// NaN stays NaN; -inf gives 0 and -1.
// The polynomials are minimax fits of (expm1(r) - r - r^2 / 2) / r^3 in relative error.
#pragma once

#include "kernels/math/bits.h"

namespace treadle::math {

template <class T>
struct ExpPair {
  T exp, expm1;
};

#if !defined(__CUDA_ARCH__)
namespace detail {

template <class T>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  static constexpr float kLog2E = 0x1.715476p+0f;
  // This has 15 bits, so that its product with k is exact even without fma.
  static constexpr float kLn2High = 0x1.62e4p-1f;
  static constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  // Adding this constant rounds a number to an integer, which is then in the low bits.
  static constexpr float kRound = 0x1.8p+23f;
  static constexpr int kMantissa = 23, kBias = 127;
  // Below this x, exp(x) rounds to 0.
  static constexpr float kLowest = -104.0f;

  static TREADLE_HD float poly(float r) {
    float p = 0x1.6c5532p-10f;
    p = fma_if_fast(p, r, 0x1.1223a6p-7f);
    p = fma_if_fast(p, r, 0x1.5555bap-5f);
    return fma_if_fast(p, r, 0x1.5554b6p-3f);
  }
};

template <>
struct ExpConstants<double> {
  static constexpr double kLog2E = 0x1.71547652b82fep+0;
  static constexpr double kLn2High = 0x1.62e42fefa2000p-1;
  static constexpr double kLn2Low = 0x1.9ef35793c7673p-41;
  static constexpr double kRound = 0x1.8p+52;
  static constexpr int kMantissa = 52, kBias = 1023;
  static constexpr double kLowest = -745.2;

  static TREADLE_HD double poly(double r) {
    double p = 0x1.ae499332c0676p-26;
    p = fma_if_fast(p, r, 0x1.289785248d267p-22);
    p = fma_if_fast(p, r, 0x1.71de974dc93ecp-19);
    p = fma_if_fast(p, r, 0x1.a019b381abdb7p-16);
    p = fma_if_fast(p, r, 0x1.a01a0171aad68p-13);
    p = fma_if_fast(p, r, 0x1.6c16c17a05f71p-10);
    p = fma_if_fast(p, r, 0x1.1111111118d41p-7);
    p = fma_if_fast(p, r, 0x1.5555555553afbp-5);
    return fma_if_fast(p, r, 0x1.555555555553ep-3);
  }
};

}  // namespace detail
#endif

#if defined(__CUDA_ARCH__)
namespace detail {

// 2^(x log2 e) by the special function unit. Its relative error is at most 2^-22, plus |x| 2^-24
// from the product. Results that cells compute from it are at most 1, with errors below 2e-7.
__device__ __forceinline__ float exp_approximate(float x) {
  float result;
  asm("ex2.approx.f32 %0, %1;" : "=f"(result) : "f"(x * 0x1.715476p+0f));
  return result;
}

// Like exp_approximate, but flushes results below 2^-126 to 0, which saves two instructions.
__device__ __forceinline__ float exp_approximate_normal(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 0x1.715476p+0f));
  return result;
}

// expm1(x): the host's polynomial near 0, where exp(x) - 1 would cancel, otherwise exp(x) - 1.
__device__ __forceinline__ float expm1_approximate(float x) {
  float p =
      fmaf(fmaf(fmaf(0x1.6c5532p-10f, x, 0x1.1223a6p-7f), x, 0x1.5555bap-5f), x, 0x1.5554b6p-3f);
  p = fmaf(x * x, fmaf(p, x, 0.5f), x);
  return x > -0.34f ? p : exp_approximate_normal(x) - 1.0f;
}

}  // namespace detail
#endif

// Valid for x <= 0 and for NaN. exp is 0 where x is below `lowest`.
template <class T>
TREADLE_HD ExpPair<T> exp_pair(T x, T lowest = T(-1e4)) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 4) {
    const float e = detail::exp_approximate(x);
    return {x < lowest ? 0.0f : e, detail::expm1_approximate(x)};
  } else {
    return {x < lowest ? 0.0 : exp(x), expm1(x)};
  }
#else
  using C = detail::ExpConstants<T>;
  const T floor = lowest > C::kLowest ? lowest : C::kLowest;
  x = select(x < floor, C::kLowest, x);
  const T shifted = fma_if_fast(x, C::kLog2E, C::kRound);
  const T k = shifted - C::kRound;
  T r = fma_if_fast(k, -C::kLn2High, x);
  r = fma_if_fast(k, -C::kLn2Low, r);
  const T p = fma_if_fast(r * r, fma_if_fast(C::poly(r), r, T(0.5)), r);
  // 2^k may be subnormal; scaled up by 2^(mantissa + 1) it never is, and the last product rounds.
  constexpr int up = C::kMantissa + 1;
  const T scaled = from_bits((bits_of(shifted) + (C::kBias + up)) << C::kMantissa);
  constexpr T down = T(1) / T(uint64_t{1} << up);
  const T scale = scaled * down;
  return {fma_if_fast(scaled, p, scaled) * down, fma_if_fast(scale, p, scale - T(1))};
#endif
}

}  // namespace treadle::math

// sin(x) and cos(x) of double, with errors of at most 2 ulp for every finite x. The steps are those
// of sine_float.h. Beyond kNear, x / (2 pi) modulo 1 is computed with integers of 192 bits.
#pragma once

#include "kernels/math/sine_float.h"

namespace treadle::math {

// The largest magnitude that is reduced with pi as a sum of several terms. It is smaller without
// fma, because then the products of these terms must be exact.
#if defined(TREADLE_FAST_FMA)
template <>
inline constexpr double kNear<double> = 0x1p+40;
#else
template <>
inline constexpr double kNear<double> = 3e6;
#endif

namespace detail {

struct DoubleAngle {
  double r;
  uint64_t sign;  // flips the result if its highest bit is set
};

TREADLE_HD double near_remainder(double x, double k) {
#if defined(TREADLE_FAST_FMA)
  double r = fma_rn(k, -0x1.921fb54442d18p+1, x);
  r = fma_rn(k, -0x1.1a62633145c06p-53, r);
  return fma_rn(k, -0x1.c1cd129024e09p-106, r);
#else
  // Terms of 33 bits have exact products. `lost` is the rounding error of the second difference.
  const double first = x - k * 0x1.921fb544p+1, product = k * 0x1.0b4611a6p-33;
  const double r = first - product, lost = (first - r) - product;
  return (r - (k * 0x1.3198a2ep-68 - lost)) - k * 0x1.b839a252049c1p-103;
#endif
}

template <Wave wave>
TREADLE_HD DoubleAngle near_angle(double x) {
#if defined(TREADLE_FAST_FMA)
  uint64_t odd = 0;
  const double k = nearest<wave>(x, 0x1.45f306dc9c883p-2, &odd);
  return {near_remainder(x, k), odd << 63};
#else
  constexpr double half = wave == Wave::kSine ? 0.0 : 0.5;
  const double shifted = (x * 0x1.45f306dc9c883p-2 + half) + kRound<double>;
  return {near_remainder(x, (shifted - kRound<double>)-half), bits_of(shifted) << 63};
#endif
}

TREADLE_HD uint64_t high_product(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
#endif
}

TREADLE_HD int leading_zeros(uint64_t x) {
#if defined(__CUDA_ARCH__)
  return __clzll(static_cast<long long>(x));
#else
  return __builtin_clzll(x);
#endif
}

// 64 binary digits of 1 / (2 pi), beginning with digit number `first`. Digit number 64 is the first
// one after the point.
TREADLE_HD uint64_t digits(int first) {
  const int word = first / 64, skipped = first % 64;
  const uint64_t upper = TREADLE_ENTRY(kInverseTwoPi[word]);
  const uint64_t lower = TREADLE_ENTRY(kInverseTwoPi[word + 1]);
  return upper << skipped | lower >> 1 >> (63 - skipped);
}

// |x| / (2 pi) modulo 1, in units of 2^-128, for |x| = m 2^e. Digits of 1 / (2 pi) whose product
// with m 2^e is a whole number of turns are left out.
struct Turns {
  uint64_t high, low;
};

TREADLE_HD Turns turns_of(double x) {
  const uint64_t bits = bits_of(x);
  const uint64_t m = (bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
  const int first = static_cast<int>((bits >> 52) & 0x7ff) - 1075 + 64;
  const uint64_t w1 = digits(first + 64);
  const uint64_t low = m * w1 + high_product(m, digits(first + 128));
  return {m * digits(first) + high_product(m, w1) + (low < m * w1), low};
}

// Valid for finite x with |x| > 2^-10.
template <Wave wave>
TREADLE_HD DoubleAngle far_angle(double x) {
  Turns turns = turns_of(x);
  constexpr uint64_t quarter = uint64_t{1} << 62;
  if constexpr (wave == Wave::kCosine) turns.high += quarter;
  // The nearest multiple of half a turn, and the signed distance to it.
  const uint64_t parity = (turns.high + quarter) >> 63;
  turns.high -= parity << 63;
  const uint64_t negative = turns.high >> 63;
  if (negative) {
    turns.low = 0 - turns.low;
    turns.high = ~turns.high + (turns.low == 0);
  }
  // The 64 leading digits of the distance, 53 in one double and 11 in another. No double is so near
  // a multiple of pi / 2 that turns.high is 0.
  const int zeros = leading_zeros(turns.high | 1);
  const uint64_t leading = turns.high << zeros | turns.low >> 1 >> (63 - zeros);
  const double unit = from_bits(static_cast<uint64_t>(1023 - 64 - zeros) << 52);
  const double upper = mul_rn(static_cast<double>(leading >> 11 << 11), unit);
  const double lower = mul_rn(static_cast<double>(leading & 0x7ff), unit);
  const double two_pi = 2 * 0x1.921fb54442d18p+1, rest = 0x1.1a62633145c07p-52;
  const double r = fma_rn(upper, two_pi, fma_rn(upper, rest, mul_rn(lower, two_pi)));
  const uint64_t mirrored = wave == Wave::kSine ? bits_of(x) >> 63 : 0;
  return {r, (parity ^ negative ^ mirrored) << 63};
}

// The exact value of r * r - square, where `square` is r * r rounded.
TREADLE_HD double square_error(double r, double square) {
#if defined(TREADLE_FAST_FMA)
  return fma_rn(r, r, -square);
#else
  const double high = from_bits(bits_of(r) & ~uint64_t{0x7ffffff}), low = r - high;
  return ((high * high - square) + 2 * high * low) + low * low;
#endif
}

TREADLE_HD double sine_of(DoubleAngle angle) {
  const double r = angle.r, q = r * r;
  double p = 0x1.8827a125266f0p-49;
  p = fma_if_fast(p, q, -0x1.ae430ad7568cep-41);
  p = fma_if_fast(p, q, 0x1.6123cae219a16p-33);
  p = fma_if_fast(p, q, -0x1.ae6454ca4181cp-26);
  p = fma_if_fast(p, q, 0x1.71de3a5285711p-19);
  p = fma_if_fast(p, q, -0x1.a01a01a014866p-13);
  p = fma_if_fast(p, q, 0x1.11111111110c1p-7);
  p = fma_if_fast(p, q, -0x1.5555555555555p-3);
  const double cube = fma_if_fast(q, r, fma_if_fast(square_error(r, q), r, 0.0));
  return from_bits(bits_of(fma_if_fast(p, cube, r)) ^ angle.sign);
}

}  // namespace detail

// near_wave for double. As in sine_float.h, callers specify scalar_t, which is double here.
template <Wave wave, class scalar_t>
TREADLE_HD double near_wave(double x) {
  return detail::sine_of(detail::near_angle<wave>(x));
}

template <Wave wave, class scalar_t>
TREADLE_HD double far_wave(double x) {
  const bool finite = x - x == 0;
  return detail::sine_of(finite ? detail::far_angle<wave>(x) : detail::DoubleAngle{x - x, 0});
}

template <Wave wave>
TREADLE_HD detail::DoubleAngle any_angle(double x) {
  const bool far = magnitude(x) > kNear<double> && !is_inf(x);  // near_angle gives NaN for inf
  return far ? detail::far_angle<wave>(x) : detail::near_angle<wave>(x);
}

template <Wave wave, class scalar_t>
TREADLE_HD double any_wave(double x) {
  return detail::sine_of(any_angle<wave>(x));
}

}  // namespace treadle::math

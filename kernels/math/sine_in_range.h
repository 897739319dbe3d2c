// sin(x) and cos(x) for |x| <= kSineRange, branch-free, so that loops over them vectorise:
// x = k pi + r with |r| <= pi / 2 (for the cosine k is half of an odd number), then a minimax odd
// polynomial in r, its sign flipped for odd k. -0 stays -0, NaN stays NaN; inf gives NaN.
// At most 1.6 ulp in float and double; without fma floats are computed in double, and double
// has 1.9.
#pragma once

#include "kernels/math/bits.h"

namespace treadle::math {

// Beyond it the three parts of pi below run out of digits.
template <class T>
inline constexpr T kSineRange = sizeof(T) == 4 ? T(1e5) : T(3e6);

#if !defined(__CUDA_ARCH__)
namespace detail {

template <class T>
struct SineConstants;

template <>
struct SineConstants<float> {
  static constexpr float kInversePi = 0x1.45f306p-2f;
  // Adding it rounds to an integer, whose lowest bit is the lowest of all.
  static constexpr float kRound = 0x1.8p+23f;
  static constexpr int kSignBit = 31;

  static TREADLE_HD float reduce(float x, float k) {
    float r = fma_if_fast(k, -0x1.921fb4p+1f, x);
    r = fma_if_fast(k, -0x1.4442dp-23f, r);
    return fma_if_fast(k, -0x1.84698ap-47f, r);
  }

  static TREADLE_HD float poly(float q) {
    float p = 0x1.5dbacep-19f;
    p = fma_if_fast(p, q, -0x1.9f6fcap-13f);
    p = fma_if_fast(p, q, 0x1.110ed2p-7f);
    return fma_if_fast(p, q, -0x1.55554cp-3f);
  }
};

template <>
struct SineConstants<double> {
  static constexpr double kInversePi = 0x1.45f306dc9c883p-2;
  static constexpr double kRound = 0x1.8p+52;
  static constexpr int kSignBit = 63;

  static TREADLE_HD double reduce(double x, double k) {
#if defined(TREADLE_FAST_FMA)
    double r = fma_if_fast(k, -0x1.921fb54442d18p+1, x);
    r = fma_if_fast(k, -0x1.1a62633145c06p-53, r);
    return fma_if_fast(k, -0x1.c1cd129024e09p-106, r);
#else
    // Parts of 33 bits: their products are exact. `lost` is what the second difference rounds off.
    const double first = x - k * 0x1.921fb544p+1, product = k * 0x1.0b4611a6p-33;
    const double r = first - product, lost = (first - r) - product;
    return r - ((k * 0x1.3198a2ep-68 - lost) + k * 0x1.b839a252049c1p-103);
#endif
  }

  static TREADLE_HD double poly(double q) {
    double p = 0x1.8827a125266f0p-49;
    p = fma_if_fast(p, q, -0x1.ae430ad7568cep-41);
    p = fma_if_fast(p, q, 0x1.6123cae219a16p-33);
    p = fma_if_fast(p, q, -0x1.ae6454ca4181cp-26);
    p = fma_if_fast(p, q, 0x1.71de3a5285711p-19);
    p = fma_if_fast(p, q, -0x1.a01a01a014866p-13);
    p = fma_if_fast(p, q, 0x1.11111111110c1p-7);
    return fma_if_fast(p, q, -0x1.5555555555555p-3);
  }
};

// r * r - square exactly, where `square` is r * r rounded.
template <class T>
TREADLE_HD T square_error(T r, T square) {
#if defined(TREADLE_FAST_FMA)
  return fma_if_fast(r, r, -square);
#else
  const double high = from_bits(bits_of(r) & ~uint64_t{0x7ffffff}), low = r - high;
  return ((high * high - square) + 2 * high * low) + low * low;
#endif
}

// sin(r), with the sign flipped if the lowest bit of `shifted` is set.
template <class T>
TREADLE_HD T signed_sine(T r, T shifted) {
  using C = SineConstants<T>;
  const T q = r * r;
  // The + 0 keeps the sign of a zero: r^3 is then +0 and the last sum is r.
  const T cube = fma_if_fast(q, r, fma_if_fast(square_error(r, q), r, T(0)));
  const T y = fma_if_fast(C::poly(q), cube, r);
  return from_bits(bits_of(y) ^ (bits_of(shifted) << C::kSignBit));
}

// What T is computed in.
#if defined(TREADLE_FAST_FMA)
template <class T>
using SineType = T;
#else
template <class T>
using SineType = double;
#endif

}  // namespace detail

template <class T>
TREADLE_HD T sine_in_range(T x) {
  using C = detail::SineConstants<detail::SineType<T>>;
  const detail::SineType<T> wide = x;
  const detail::SineType<T> shifted = fma_if_fast(wide, C::kInversePi, C::kRound);
  const detail::SineType<T> k = shifted - C::kRound;
  return static_cast<T>(detail::signed_sine(C::reduce(wide, k), shifted));
}

// cos(x) = sin(x + pi / 2).
template <class T>
TREADLE_HD T cosine_in_range(T x) {
  using C = detail::SineConstants<detail::SineType<T>>;
  const detail::SineType<T> wide = x, half = 0.5;
  const detail::SineType<T> shifted = fma_if_fast(wide, C::kInversePi, half) + C::kRound;
  const detail::SineType<T> k = (shifted - C::kRound) - half;
  return static_cast<T>(detail::signed_sine(C::reduce(wide, k), shifted));
}
#endif

}  // namespace treadle::math

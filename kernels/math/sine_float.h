// sin(x) and cos(x) of float, Half and BFloat16, computed in float: the same bits on every device.
//
// x = k pi + r with |r| <= pi / 2, then an odd polynomial in r, its sign flipped for odd k. For the
// cosine k is half of an odd number, since cos(x) = sin(x + pi / 2). Up to kNear, r = x - k pi with
// pi in parts; beyond it, a table by exponent says x / pi modulo 2 (sine_tables.h).
// float: at most 1.6 ulp. Half and BFloat16: rounded correctly but for two numbers of Half and
// their negatives. -0 stays -0: the parts of pi are positive, so that 0 times them has the sign of
// k. inf gives NaN.
#pragma once

#include <type_traits>

#include "kernels/math/exact.h"
#include "kernels/math/sine_tables.h"

namespace treadle::math {

enum class Wave { kSine, kCosine };

// Up to here pi in parts is exact enough. NaN is near.
template <class scalar_t>
inline constexpr acc_t<scalar_t> kNear = 0x1p+17f;
template <>
inline constexpr float kNear<BFloat16> = 0x1p+22f;
// Every Half is near; inf gives NaN on that way, too.
template <>
inline constexpr float kNear<Half> = 0x1p+17f;
template <class scalar_t>
inline constexpr bool kHasFar = !std::is_same_v<scalar_t, Half>;

namespace detail {

inline constexpr float kInversePi = 0x1.45f306p-2f;
inline constexpr double kPi = 0x1.921fb54442d18p+1;

// Adding it rounds to an integer, whose lowest bit is the lowest of all.
template <class T>
inline constexpr T kRound = sizeof(T) == 4 ? T(0x1.8p+23) : T(0x1.8p+52);

// What the result is the sine of, and in the highest bit whether to flip its sign.
struct Angle {
  float r;
  uint32_t sign;
};

// The k that is nearest to x * per, and in the lowest bit of `parity` whether to flip the sign.
template <Wave wave, class T, class Bits>
TREADLE_HD T nearest(T x, T per, Bits* parity) {
  T shifted = 0, k = 0;
  if constexpr (wave == Wave::kSine) {
    shifted = fma_rn(x, per, kRound<T>);
    k = sub_rn(shifted, kRound<T>);
  } else {
    shifted = add_rn(fma_rn(x, per, T(0.5)), kRound<T>);
    k = sub_rn(sub_rn(shifted, kRound<T>), T(0.5));
  }
  *parity = bits_of(shifted);
  return k;
}

template <Wave wave, class scalar_t>
TREADLE_HD Angle near_angle(float x) {
  uint32_t parity = 0;
  const float k = nearest<wave>(x, kInversePi, &parity);
  float r = fma_rn(k, -0x1.921fb4p+1f, x);  // exact where |x| > 1
  r = fma_rn(k, -0x1.4442d0p-23f, r);
  if constexpr (std::is_same_v<scalar_t, float>) r = fma_rn(k, -0x1.84698ap-47f, r);
  return {r, parity << 31};
}

TREADLE_HD HalfTurns<double> float_row(uint32_t row) {
#if defined(__CUDA_ARCH__)
  const double2 found = __ldg(reinterpret_cast<const double2*>(kFloatHalfTurns + row));
  return {found.x, found.y};
#else
  return TREADLE_ENTRY(kFloatHalfTurns[row]);
#endif
}

TREADLE_HD HalfTurns<float> bfloat16_row(uint32_t row) {
#if defined(__CUDA_ARCH__)
  const float2 found = __ldg(reinterpret_cast<const float2*>(kBFloat16HalfTurns + row));
  return {found.x, found.y};
#else
  return TREADLE_ENTRY(kBFloat16HalfTurns[row]);
#endif
}

// For |x| >= kNear.
template <Wave wave>
TREADLE_HD Angle far_angle(float x) {
  const HalfTurns<double> row = float_row((bits_of(x) >> 23) - kFirstFloatRow);
  const double wide = x;
  uint64_t parity = 0;
  const double k = nearest<wave>(wide, row.high, &parity);
  const double half_turns = fma_rn(wide, row.low, fma_rn(wide, row.high, -k));
  return {static_cast<float>(mul_rn(half_turns, kPi)), static_cast<uint32_t>(parity) << 31};
}

// For bfloat16 numbers from 2 up; r in half turns.
template <Wave wave>
TREADLE_HD Angle far_half_turns(float x) {
  const HalfTurns<float> row = bfloat16_row((bits_of(x) >> 23) - kFirstBFloat16Row);
  const float scaled = mul_rn(x, 0x1p-60f);
  uint32_t parity = 0;
  const float k = nearest<wave>(scaled, row.high, &parity);
  return {fma_rn(scaled, row.low, fma_rn(scaled, row.high, -k)), parity << 31};
}

// c + q (rest[0] + q (rest[1] + ...)).
template <class T, class... Rest>
TREADLE_HD T polynomial(T q, T c, Rest... rest) {
  if constexpr (sizeof...(rest) == 0) {
    return c;
  } else {
    return fma_rn(polynomial(q, rest...), q, c);
  }
}

TREADLE_HD float flipped(float y, uint32_t sign) { return from_bits(bits_of(y) ^ sign); }

// sin(r) as r + r^3 p(r^2). r^2 r + 0 is +0 for -0, and the last sum is r then.
template <class scalar_t>
TREADLE_HD float sine_of(Angle angle) {
  const float r = angle.r, q = mul_rn(r, r);
  float p = 0, cube = 0;
  if constexpr (std::is_same_v<scalar_t, BFloat16>) {
    p = polynomial(q, -0x1.555112p-3f, 0x1.107132p-7f, -0x1.84dbccp-13f);
  } else {
    p = polynomial(q, -0x1.55554cp-3f, 0x1.110ed2p-7f, -0x1.9f6fcap-13f, 0x1.5dbacep-19f);
  }
  if constexpr (std::is_same_v<scalar_t, float>) {
    // With what rounding r^2 has lost.
    cube = fma_rn(q, r, fma_rn(fma_rn(r, r, -q), r, 0.0f));
  } else {
    cube = fma_rn(q, r, 0.0f);
  }
  return flipped(fma_rn(p, cube, r), angle.sign);
}

// sin(pi r).
TREADLE_HD float sine_of_half_turns(Angle angle) {
  const float q = mul_rn(angle.r, angle.r);
  const float p = polynomial(q, 0x1.921fb0p+1f, -0x1.4abbacp+2f, 0x1.466870p+1f, -0x1.3241ccp-1f,
                             0x1.3cdce4p-4f);
  return flipped(mul_rn(p, angle.r), angle.sign);
}

}  // namespace detail

// For |x| <= kNear<scalar_t>, and NaN.
template <Wave wave, class scalar_t>
TREADLE_HD float near_wave(float x) {
  return detail::sine_of<scalar_t>(detail::near_angle<wave, scalar_t>(x));
}

// For |x| >= kNear<scalar_t>, and NaN; for BFloat16 from 2 on, and rounded it equals near_wave
// there.
template <Wave wave, class scalar_t>
TREADLE_HD float far_wave(float x) {
  if constexpr (std::is_same_v<scalar_t, float>) {
    return detail::sine_of<float>(detail::far_angle<wave>(x));
  } else {
    return detail::sine_of_half_turns(detail::far_half_turns<wave>(x));
  }
}

// For any x, as if it were alone.
template <Wave wave, class scalar_t>
TREADLE_HD float any_wave(float x) {
  const bool far = magnitude(x) > kNear<scalar_t>;
  const float far_x = select(far, x, kNear<scalar_t>);
  if constexpr (!kHasFar<scalar_t>) {
    return near_wave<wave, scalar_t>(x);
  } else if constexpr (std::is_same_v<scalar_t, float>) {
    const detail::Angle a = detail::near_angle<wave, float>(x), b = detail::far_angle<wave>(far_x);
    return detail::sine_of<float>({select(far, b.r, a.r), far ? b.sign : a.sign});
  } else {
    return select(far, far_wave<wave, scalar_t>(far_x), near_wave<wave, scalar_t>(x));
  }
}

}  // namespace treadle::math

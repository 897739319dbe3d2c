// sin(x) and cos(x) of float, Half and BFloat16, computed in float, with the same bits on every
// device.
//
// x = k pi + r with |r| <= pi / 2. The sine is an odd polynomial in r, with its sign flipped for
// odd k. The cosine is sin(x + pi / 2): either k is an integer minus 1/2, or r is pi / 2 minus the
// |r| of the sine. Up to kNear, r is computed with pi or 1 / pi in several terms. Beyond kNear,
// x / pi modulo 2 is computed with a table that has an entry for each exponent (sine_tables.h).
// Errors in float are at most 1.6 ulp. BFloat16 results are correctly rounded, and so are Half
// results, except those of two numbers and their negatives. -0 stays -0: all terms of pi and 1 / pi
// are positive, so a product with 0 has the right sign. inf gives NaN.
#pragma once

#include <type_traits>

#include "kernels/math/exact.h"
#include "kernels/math/sine_tables.h"

namespace treadle::math {

enum class Wave { kSine, kCosine };

// The largest magnitude that is reduced without the table. NaN counts as near.
template <class scalar_t>
inline constexpr acc_t<scalar_t> kNear = 0x1p+17f;
template <>
inline constexpr float kNear<BFloat16> = 0x1p+22f;
// Every Half counts as near, even inf, for which near_wave gives NaN.
template <class scalar_t>
inline constexpr bool kHasFar = !std::is_same_v<scalar_t, Half>;

// Up to this magnitude a float needs no table, because kFloatSmall gives x / pi accurately enough.
inline constexpr float kNoTable = 0x1p+23f;

// A value whose sign must still be flipped if the lowest bit of `odd` is set.
struct Flip {
  float value;
  uint32_t odd;
};

TREADLE_HD float resolved(Flip flip) { return from_bits(bits_of(flip.value) ^ flip.odd << 31); }

namespace detail {

// Adding this constant rounds a number to an integer and puts its parity in the lowest bit.
template <class T>
inline constexpr T kRound = sizeof(T) == 4 ? T(0x1.8p+23) : T(0x1.8p+52);

// The k nearest to x / pi. For the sine k is an integer, for the cosine an integer minus 1/2. The
// integer's parity, which gives the sign, is the lowest bit of `odd`.
template <Wave wave, class T, class Bits>
TREADLE_HD T nearest(T x, T inverse_pi, Bits* odd) {
  T shifted = 0, k = 0;
  if constexpr (wave == Wave::kSine) {
    shifted = fma_rn(x, inverse_pi, kRound<T>);
    k = sub_rn(shifted, kRound<T>);
  } else {
    shifted = add_rn(fma_rn(x, inverse_pi, T(0.5)), kRound<T>);
    k = sub_rn(sub_rn(shifted, kRound<T>), T(0.5));
  }
  *odd = bits_of(shifted);
  return k;
}

// Returns t = x / pi minus the nearest integer for the sine, and 1/2 - |t| for the cosine.
template <Wave wave, class T, class Bits>
TREADLE_HD T half_turns(T x, HalfTurns<T> row, Bits* odd) {
  const T k = nearest<Wave::kSine>(x, row.high, odd);
  const T turns = fma_rn(x, row.low, fma_rn(x, row.high, -k));
  return wave == Wave::kSine ? turns : sub_rn(T(0.5), magnitude(turns));
}

// Computes r with pi in two or three terms.
template <Wave wave, class scalar_t>
TREADLE_HD Flip near_angle(float x) {
  uint32_t odd = 0;
  const float k = nearest<wave>(x, 0x1.45f306p-2f, &odd);
  float r = fma_rn(k, -0x1.921fb4p+1f, x);  // exact where |x| > 1
  r = fma_rn(k, -0x1.4442d0p-23f, r);
  if constexpr (std::is_same_v<scalar_t, float>) r = fma_rn(k, -0x1.84698ap-47f, r);
  return {r, odd};
}

template <Wave wave>
TREADLE_HD Flip angle_by(float x, HalfTurns<double> row) {
  uint64_t odd = 0;
  const double turns = half_turns<wave>(static_cast<double>(x), row, &odd);
  return {static_cast<float>(mul_rn(turns, 0x1.921fb54442d18p+1)), static_cast<uint32_t>(odd)};
}

// The row of the table for an x with |x| >= kNear, or for NaN.
TREADLE_HD HalfTurns<double> float_row(float x) {
  const uint32_t row = (bits_of(x) >> 23) - kFirstFloatRow;
#if defined(__CUDA_ARCH__)
  const double2 found = __ldg(reinterpret_cast<const double2*>(kFloatHalfTurns + row));
  return {found.x, found.y};
#else
  return TREADLE_ENTRY({kFloatHalfTurns[row].high, kFloatHalfTurns[row].low});
#endif
}

// The row of the table for an x that far_wave has scaled.
TREADLE_HD HalfTurns<float> bfloat16_row(float scaled) {
  const uint32_t row = (bits_of(scaled) >> 23) & 0xffu;
#if defined(__CUDA_ARCH__)
  const float2 found = __ldg(reinterpret_cast<const float2*>(kBFloat16HalfTurns + row));
  return {found.x, found.y};
#else
  return TREADLE_ENTRY({kBFloat16HalfTurns[row].high, kBFloat16HalfTurns[row].low});
#endif
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

// sin(r) as r + r^3 p(r^2). Adding 0 to the cube makes it +0 if r is -0; then the result is -0,
// too.
template <class scalar_t>
TREADLE_HD Flip sine_of(Flip angle) {
  const float r = angle.value, q = mul_rn(r, r);
  const float p = polynomial(q, -0x1.55554cp-3f, 0x1.110ed2p-7f, -0x1.9f6fcap-13f, 0x1.5dbacep-19f);
  float cube = 0;
  if constexpr (std::is_same_v<scalar_t, float>) {
    // Adds the rounding error of r^2.
    cube = fma_rn(q, r, fma_rn(fma_rn(r, r, -q), r, 0.0f));
  } else {
    cube = fma_rn(q, r, 0.0f);
  }
  return {fma_rn(p, cube, r), angle.odd};
}

// sin(pi r), accurate enough that the result is correctly rounded for every bfloat16 up to kNear.
TREADLE_HD float sinpi_bf16_near(float r) {
  const float q = mul_rn(r, r);
  const float p = polynomial(q, 0x1.921fa8p+1f, -0x1.4ab754p+2f, 0x1.45ad72p+1f, -0x1.1f0c0ap-1f);
  return mul_rn(p, r);
}

// sin(pi r), accurate enough that the result is correctly rounded for every bfloat16.
TREADLE_HD float sinpi_bf16(float r) {
  const float q = mul_rn(r, r);
  const float p = polynomial(q, 0x1.921fb0p+1f, -0x1.4abbacp+2f, 0x1.466870p+1f, -0x1.3241ccp-1f,
                             0x1.3cdce4p-4f);
  return mul_rn(p, r);
}

}  // namespace detail

// Valid for |x| <= kNear<scalar_t>, and for NaN.
template <Wave wave, class scalar_t>
TREADLE_HD Flip near_wave(float x) {
  if constexpr (std::is_same_v<scalar_t, BFloat16>) {
    uint32_t odd = 0;
    const float turns = detail::half_turns<wave>(x, kBFloat16Small, &odd);
    return {detail::sinpi_bf16_near(turns), odd};
  } else {
    return detail::sine_of<scalar_t>(detail::near_angle<wave, scalar_t>(x));
  }
}

// Valid for a bfloat16 x with |x| >= 2. The argument is x multiplied by kBFloat16Scale, so that no
// table entry is below the smallest float. If |x| is at most kNear, the result rounded to bfloat16
// equals that of near_wave.
template <Wave wave>
TREADLE_HD Flip far_scaled_wave(float scaled) {
  uint32_t odd = 0;
  const float turns = detail::half_turns<wave>(scaled, detail::bfloat16_row(scaled), &odd);
  return {detail::sinpi_bf16(turns), odd};
}

// Valid for |x| >= kNear<scalar_t>, and for NaN.
template <Wave wave, class scalar_t>
TREADLE_HD Flip far_wave(float x) {
  if constexpr (std::is_same_v<scalar_t, BFloat16>) {
    return far_scaled_wave<wave>(mul_rn(x, kBFloat16Scale));
  } else {
    return detail::sine_of<float>(detail::angle_by<wave>(x, detail::float_row(x)));
  }
}

// Valid for any x, and has no branch. Without the table, |x| must be at most kNoTable.
template <Wave wave, class scalar_t, bool table = true>
TREADLE_HD Flip any_wave(float x) {
  const bool far = magnitude(x) > kNear<scalar_t>;
  const float far_x = select(far, x, kNear<scalar_t>);
  if constexpr (!kHasFar<scalar_t>) {
    return near_wave<wave, scalar_t>(x);
  } else if constexpr (std::is_same_v<scalar_t, BFloat16>) {
    const Flip a = near_wave<wave, scalar_t>(x), b = far_wave<wave, scalar_t>(far_x);
    return {select(far, b.value, a.value), far ? b.odd : a.odd};
  } else {
    const Flip a = detail::near_angle<wave, scalar_t>(x);
    const HalfTurns<double> row = table ? detail::float_row(far_x) : kFloatSmall;
    const Flip b = detail::angle_by<wave>(far_x, row);
    return detail::sine_of<scalar_t>({select(far, b.value, a.value), far ? b.odd : a.odd});
  }
}

}  // namespace treadle::math

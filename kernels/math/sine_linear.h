// Computes y = sin(u) and `phase`, on host and device. Both are saved for the derivatives. The
// phase depends on the type:
//   Half, BFloat16   u in units of 2^-16 turn, modulo a turn: sine and cosine within 1.5e-4
//   float            16 bits that give cos(u) from y, within 4e-8 of the rounded cosine
//   double           u
// In float, |cos(u)| is sqrt((1 - y) (1 + y)), with an error that is large where the cosine is
// small. If (1 - y) (1 + y) is at least kSmall, the 16 bits are the sign of cos(u) and a correction
// of the root. Otherwise they are cos(u) in fixed point. For NaN and inf, y is NaN; in half types
// the phase is then kNaN.
#pragma once

#include "kernels/math/sine_double.h"
#include "kernels/math/sine_float.h"

namespace treadle::math {

namespace detail {

// The lower 16 bits as a signed number.
TREADLE_HD int32_t signed_16(uint32_t bits) { return static_cast<int32_t>(bits << 16) >> 16; }

// round(scale x) in the lower bits, for |scale x| < 2^22.
TREADLE_HD uint32_t rounded_bits(float x, float scale) {
  return bits_of(fma_rn(x, scale, kRound<float>));
}

// Returns r, where u = k pi + r, and whether k is odd. With kFar, |u| may exceed kNear<float>.
template <bool kFar>
TREADLE_HD Flip sine_angle(float u) {
  const Flip a = near_angle<Wave::kSine, Half>(u);
  if constexpr (!kFar) {
    return a;
  } else {
    const bool far = magnitude(u) > kNear<float>;
    const float far_u = select(far, u, kNear<float>);
    const Flip b = angle_by<Wave::kSine>(far_u, float_row(far_u));
    return {select(far, b.value, a.value), far ? b.odd : a.odd};
  }
}

// u = k pi / 2 + r with |r| <= pi / 4. k determines whether sin(r) and cos(r) are exchanged, and
// their signs.
struct Quarter {
  float r;
  uint32_t k;  // modulo 4
};

// For |u| up to kNear, pi / 2 is subtracted in three terms; beyond it, u / pi comes from a table.
template <bool kFar>
TREADLE_HD Quarter quarter_of(float u) {
  const float shifted = fma_rn(u, 0x1.45f306p-1f, kRound<float>);
  const float k = sub_rn(shifted, kRound<float>);
  float r = fma_rn(k, -0x1.921fb4p+0f, u);  // exact where |u| > 1
  r = fma_rn(k, -0x1.4442d0p-24f, r);
  r = fma_rn(k, -0x1.84698ap-48f, r);
  if constexpr (!kFar) {
    return {r, bits_of(shifted)};
  } else {
    const bool far = magnitude(u) > kNear<float>;
    const float far_u = select(far, u, kNear<float>);
    uint64_t odd = 0;
    const double halves =
        half_turns<Wave::kSine>(static_cast<double>(far_u), float_row(far_u), &odd);
    const double quarters = add_rn(halves, halves), moved = add_rn(quarters, kRound<double>);
    const double rest = sub_rn(quarters, sub_rn(moved, kRound<double>));
    const auto far_r = static_cast<float>(mul_rn(rest, 0x1.921fb54442d18p+0));
    const auto far_k = static_cast<uint32_t>(odd << 1) + static_cast<uint32_t>(bits_of(moved));
    return {select(far, far_r, r), far ? far_k : bits_of(shifted)};
  }
}

struct SineAndCosine {
  float sine, cosine;
};

// Errors are at most 1 ulp where a result is near 1 or -1, and 1.6 ulp elsewhere. Both polynomials
// are within 4e-9.
TREADLE_HD SineAndCosine waves_of(Quarter angle) {
  const float r = angle.r, q = mul_rn(r, r);
  // Adds 0 like sine_of, so that -0 stays -0.
  const float s = fma_rn(polynomial(q, -0x1.555546p-3f, 0x1.110738p-7f, -0x1.99432ep-13f),
                         fma_rn(q, r, 0.0f), r);
  const float c = polynomial(q, 1.0f, -0.5f, 0x1.55554ap-5f, -0x1.6c0c8ap-10f, 0x1.9a01bap-16f);
  const bool turned = (angle.k & 1) != 0;
  const float sine = turned ? c : s, cosine = turned ? s : c;
  return {from_bits(bits_of(sine) ^ (angle.k & 2) << 30),
          from_bits(bits_of(cosine) ^ ((angle.k + 1) & 2) << 30)};
}

// If cos(u)^2 is below kSmall, the 16 bits are cos(u) in units of 2^-24, up to 2^-9 in magnitude.
// If cos(u)^2 is kSmall, the root is 0.95 * 2^-9, and an error of 1.6 ulp in y changes it by 5e-5.
// The correction can represent this, because it has 15 bits in units of 2^-28.
inline constexpr float kSmall = 0.9025f * 0x1p-18f;
inline constexpr float kUnit = 0x1p-24f, kFineUnit = 0x1p-28f;

// Returns (1 - y) (1 + y), which is cos(u)^2 except for the rounding of y.
TREADLE_HD float square_of_cosine(float y) { return mul_rn(sub_rn(1.0f, y), add_rn(1.0f, y)); }

// sqrt(square) if `square` is at least kSmall; NaN stays NaN. The correction also covers the error
// of sqrt_near.
TREADLE_HD float root_of(float square) { return sqrt_near(square < kSmall ? kSmall : square); }

// Encodes a cosine in the lower 16 bits of the result.
TREADLE_HD uint32_t encode_cosine(float y, float c) {
  const float square = square_of_cosine(y);
  const uint32_t itself = rounded_bits(c, 1 / kUnit);
  const uint32_t wrong = rounded_bits(sub_rn(magnitude(c), root_of(square)), 1 / kFineUnit);
  return square < kSmall ? itself : (wrong << 1 | bits_of(c) >> 31);
}

TREADLE_HD float decode_cosine(float y, int32_t code) {
  const float square = square_of_cosine(y);
  const bool small = square < kSmall;
  const float root = root_of(square);
  const float number = static_cast<float>(small ? code : code >> 1);
  const float c = fma_rn(number, small ? kUnit : kFineUnit, small ? 0.0f : root);
  const uint32_t sign = small ? 0u : static_cast<uint32_t>(code) << 31;
  return from_bits(bits_of(c) ^ sign);
}

}  // namespace detail

// For each stored type: the type of the phase in memory (phase_t) and in registers (Phase), the
// saved values from which the derivatives' cosines and sines are computed, and the formulas.
template <class scalar_t>
struct SineLinear {
  using phase_t = int16_t;
  using Phase = int32_t;
  template <bool kCosine>
  static constexpr bool kReadsOutput = false;
  template <bool kCosine>
  static constexpr bool kReadsPhase = true;
  static constexpr Phase kNaN = -0x8000;

  struct Result {
    float y;
    Phase phase;
  };

  // For |u| <= kNear<float>. Only the lower 16 bits of the phase are meaningful. Half a turn has
  // the bits of kNaN, so the caller must clamp it.
  static TREADLE_HD Result near(float u) { return of(detail::sine_angle<false>(u)); }

  // With kFar, also for |u| > kNear<float> and NaN.
  template <bool kFar>
  static TREADLE_HD Result forward(float u) {
    const Result found = of(detail::sine_angle<kFar>(u));
    const Phase phase = detail::signed_16(static_cast<uint32_t>(found.phase));
    const Phase other = phase == kNaN ? kNaN + 1 : phase;
    return {found.y, u - u == 0 ? other : kNaN};
  }

  // sin(u), or cos(u).
  template <bool kCosine, bool kFar>
  static TREADLE_HD float wave(float, Phase phase) {
    const uint32_t units = static_cast<uint32_t>(phase) + (kCosine ? 0x4000u : 0u);
    // `rest` is the distance to the nearest multiple of half a turn.
    const int32_t rest = static_cast<int32_t>(units << 17) >> 17;
    const uint32_t odd = (units - static_cast<uint32_t>(rest)) >> 15;
    const float r = mul_rn(static_cast<float>(rest), 0x1.921fb6p-14f);
    const float wave = resolved(detail::sine_of<Half>({r, odd}));
    return select(phase == kNaN, from_bits(0x7fc00000u), wave);
  }

 private:
  static TREADLE_HD Result of(Flip angle) {
    // 2^15 units are half a turn.
    const uint32_t units = detail::rounded_bits(angle.value, 0x1.45f306p+13f) + (angle.odd << 15);
    return {resolved(detail::sine_of<Half>(angle)), static_cast<Phase>(units)};
  }
};

template <>
struct SineLinear<float> {
  using phase_t = int16_t;
  using Phase = int32_t;
  template <bool kCosine>
  static constexpr bool kReadsOutput = true;
  template <bool kCosine>
  static constexpr bool kReadsPhase = kCosine;

  struct Result {
    float y;
    Phase phase;
  };

  // For |u| <= kNear<float>. Only the lower 16 bits of the phase are meaningful.
  static TREADLE_HD Result near(float u) { return of<false>(u); }

  template <bool kFar>
  static TREADLE_HD Result forward(float u) {
    const Result found = of<kFar>(u);
    return {found.y, detail::signed_16(static_cast<uint32_t>(found.phase))};
  }

  template <bool kCosine, bool kFar>
  static TREADLE_HD float wave(float y, Phase phase) {
    if constexpr (!kCosine) return y;
    return detail::decode_cosine(y, phase);
  }

 private:
  template <bool kFar>
  static TREADLE_HD Result of(float u) {
    const auto [y, cosine] = detail::waves_of(detail::quarter_of<kFar>(u));
    return {y, static_cast<Phase>(detail::encode_cosine(y, cosine))};
  }
};

template <>
struct SineLinear<double> {
  using phase_t = double;
  using Phase = double;
  template <bool kCosine>
  static constexpr bool kReadsOutput = false;
  template <bool kCosine>
  static constexpr bool kReadsPhase = true;

  struct Result {
    double y;
    Phase phase;
  };

  template <bool kFar>
  static TREADLE_HD Result forward(double u) {
    return {wave<false, kFar>(0, u), u};
  }

  template <bool kCosine, bool kFar>
  static TREADLE_HD double wave(double, Phase u) {
    constexpr Wave kind = kCosine ? Wave::kCosine : Wave::kSine;
    if constexpr (kFar) {
      return any_wave<kind, double>(u);
    } else {
      return near_wave<kind, double>(u);
    }
  }
};

// Up to this |u|, forward() does not need kFar. If the phase is u, neither does wave().
template <class scalar_t>
inline constexpr acc_t<scalar_t> kNearPhase = kNear<acc_t<scalar_t>>;

}  // namespace treadle::math

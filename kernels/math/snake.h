// snake: out = x + sin(t)^2 / b with t = alpha x. Its derivatives:
//   with respect to x      1 + 2 alpha / b sin(t) cos(t)
//   with respect to alpha  2 x / b sin(t) cos(t)
//   with respect to beta   -sin(t)^2 / b^2
// b is beta + eps; its inverse is computed first, as in the models that use snake. Without beta and
// eps, b is alpha. This is the limit form: w is sin(t) / alpha or, where alpha is 0, its limit x.
// Then out = x + alpha w^2, and the derivative with respect to alpha is w (2 x cos(t) - w). The
// forward result has the same bits on every device, except in float64. Twin:
// treadle.reference.snake.
#pragma once

#include "kernels/math/sine_double.h"
#include "kernels/math/sine_float.h"

namespace treadle::math {

// The largest |t| that near_snake accepts; NaN counts as near. t is a float even for half types,
// so |t| can exceed this bound in every dtype.
template <class scalar_t>
inline constexpr acc_t<scalar_t> kSnakeNear = kNear<acc_t<scalar_t>>;

// Below this |t| the limit form uses t for sin(t): their squares differ by less than half an ulp.
template <class acc>
inline constexpr acc kSnakeTiny = sizeof(acc) == 4 ? acc(0x1p-12) : acc(0x1p-27);

// Whether alpha is 0 or subnormal.
TREADLE_HD bool snake_is_small(float alpha) { return magnitude(alpha) < 0x1p-126f; }
TREADLE_HD bool snake_is_small(double alpha) { return magnitude(alpha) < 0x1p-1022; }

// sin(t) and cos(t), or both negated: no result depends on their common sign.
template <class acc>
struct SnakeWaves {
  acc sine, cosine;

  TREADLE_HD acc square() const { return mul_rn(sine, sine); }
  TREADLE_HD acc product() const { return mul_rn(sine, cosine); }
};

namespace detail {

// cos(pi r) within 2e-7.
TREADLE_HD float cospi(float r) {
  const float q = mul_rn(r, r);
  return polynomial(q, 1.0f, -0x1.3bd3b0p+2f, 0x1.03bdaap+2f, -0x1.550418p+0f, 0x1.c2b978p-3f);
}

// For half types: t / pi minus the nearest integer. An odd integer flips the signs of both waves,
// so its parity does not matter.
template <class T>
TREADLE_HD float snake_turns(T t, HalfTurns<T> row) {
  std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t> odd = 0;
  return static_cast<float>(half_turns<Wave::kSine>(t, row, &odd));
}

// For half types. The sine has the accuracy of the sine for bfloat16. Its error is much smaller
// than the rounding of the results.
template <bool kCosine>
TREADLE_HD SnakeWaves<float> snake_of_turns(float turns) {
  return {sinpi_bf16_near(turns), kCosine ? cospi(turns) : 0};
}

}  // namespace detail

// Valid for |t| <= kSnakeNear, and for NaN.
template <class scalar_t, bool kCosine>
TREADLE_HD SnakeWaves<acc_t<scalar_t>> near_snake(acc_t<scalar_t> t) {
  if constexpr (is_half_type<scalar_t>) {
    return detail::snake_of_turns<kCosine>(detail::snake_turns(t, kBFloat16Small));
  } else if constexpr (std::is_same_v<scalar_t, float>) {
    const Flip s = near_wave<Wave::kSine, float>(t);
    Flip c = {0, 0};
    if constexpr (kCosine) c = near_wave<Wave::kCosine, float>(t);
    return {s.value, resolved({c.value, s.odd ^ c.odd})};
  } else {
    const double s = near_wave<Wave::kSine, double>(t);
    return {s, kCosine ? near_wave<Wave::kCosine, double>(t) : 0};
  }
}

// Valid for any t. If |t| is at most kSnakeNear, the bits are those of near_snake, so that no
// result depends on the elements next to it.
template <class scalar_t, bool kCosine>
TREADLE_HD SnakeWaves<acc_t<scalar_t>> any_snake(acc_t<scalar_t> t) {
  if constexpr (is_half_type<scalar_t>) {
    const bool far = magnitude(t) > kSnakeNear<scalar_t>;
    const float far_t = select(far, t, kSnakeNear<scalar_t>);
    const float by_table =
        detail::snake_turns(static_cast<double>(far_t), detail::float_row(far_t));
    const float near = detail::snake_turns(t, kBFloat16Small);
    return detail::snake_of_turns<kCosine>(select(far, by_table, near));
  } else if constexpr (std::is_same_v<scalar_t, double>) {
    const double s = any_wave<Wave::kSine, double>(t);
    return {s, kCosine ? any_wave<Wave::kCosine, double>(t) : 0};
  } else {
    const Flip s = any_wave<Wave::kSine, float>(t);
    Flip c = {0, 0};
    if constexpr (kCosine) c = any_wave<Wave::kCosine, float>(t);
    return {s.value, resolved({c.value, s.odd ^ c.odd})};
  }
}

}  // namespace treadle::math

// snake: out = x + sin(t)^2 / b with t = alpha x, b = beta + eps. Its derivatives are, by
// x: 1 + 2 alpha / b sin(t) cos(t), by alpha: 2 x / b sin(t) cos(t), by beta: -sin(t)^2 / b^2.
// As in the models that use it b is inverted first. Forward: the same bits on every device, but for
// float64. Twin: treadle.reference.snake.
#pragma once

#include "kernels/math/sine_double.h"
#include "kernels/math/sine_float.h"

namespace treadle::math {

// Largest |t| that near_snake takes; NaN counts as near. A half type's t is no half type, so that
// none of them is near for certain.
template <class scalar_t>
inline constexpr acc_t<scalar_t> kSnakeNear = kNear<acc_t<scalar_t>>;

template <class acc>
struct SnakeWaves {
  acc square, product;  // sin(t)^2 and sin(t) cos(t)
};

namespace detail {

// cos(pi r) within 2e-7.
TREADLE_HD float cospi(float r) {
  const float q = mul_rn(r, r);
  return polynomial(q, 1.0f, -0x1.3bd3b0p+2f, 0x1.03bdaap+2f, -0x1.550418p+0f, 0x1.c2b978p-3f);
}

TREADLE_HD float product_of(Flip s, Flip c) {
  return resolved({mul_rn(s.value, c.value), s.odd ^ c.odd});
}

// Of half types: t / pi less the nearest integer. Its parity goes for nothing, since the signs of
// sine and cosine cancel.
template <class T>
TREADLE_HD float snake_turns(T t, HalfTurns<T> row) {
  std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t> odd = 0;
  return static_cast<float>(half_turns<Wave::kSine>(t, row, &odd));
}

// Of half types. The sine is as accurate as those of bfloat16, which is much finer than what the
// results are rounded to.
template <bool kProduct>
TREADLE_HD SnakeWaves<float> snake_of_turns(float turns) {
  const float s = sinpi_bf16_near(turns);
  return {mul_rn(s, s), kProduct ? mul_rn(s, cospi(turns)) : 0};
}

}  // namespace detail

// For |t| <= kSnakeNear, and NaN.
template <class scalar_t, bool kProduct>
TREADLE_HD SnakeWaves<acc_t<scalar_t>> near_snake(acc_t<scalar_t> t) {
  if constexpr (is_half_type<scalar_t>) {
    return detail::snake_of_turns<kProduct>(detail::snake_turns(t, kBFloat16Small));
  } else if constexpr (std::is_same_v<scalar_t, float>) {
    const Flip s = near_wave<Wave::kSine, float>(t);
    float product = 0;
    if constexpr (kProduct) product = detail::product_of(s, near_wave<Wave::kCosine, float>(t));
    return {mul_rn(s.value, s.value), product};
  } else {
    const double s = near_wave<Wave::kSine, double>(t);
    return {s * s, kProduct ? s * near_wave<Wave::kCosine, double>(t) : 0};
  }
}

// For any t. A near one gives the bits of near_snake, so that no result goes by its neighbours.
template <class scalar_t, bool kProduct>
TREADLE_HD SnakeWaves<acc_t<scalar_t>> any_snake(acc_t<scalar_t> t) {
  if constexpr (is_half_type<scalar_t>) {
    const bool far = magnitude(t) > kSnakeNear<scalar_t>;
    const float far_t = select(far, t, kSnakeNear<scalar_t>);
    const float by_table =
        detail::snake_turns(static_cast<double>(far_t), detail::float_row(far_t));
    const float near = detail::snake_turns(t, kBFloat16Small);
    return detail::snake_of_turns<kProduct>(select(far, by_table, near));
  } else if constexpr (std::is_same_v<scalar_t, double>) {
    const double s = any_wave<Wave::kSine, double>(t);
    return {s * s, kProduct ? s * any_wave<Wave::kCosine, double>(t) : 0};
  } else {
    const Flip s = any_wave<Wave::kSine, float>(t);
    float product = 0;
    if constexpr (kProduct) product = detail::product_of(s, any_wave<Wave::kCosine, float>(t));
    return {mul_rn(s.value, s.value), product};
  }
}

}  // namespace treadle::math

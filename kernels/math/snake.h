// snake: out = x + sin(t)^2 / b with t = alpha x, b = beta + eps. Its derivatives are, by
// x: 1 + 2 alpha / b sin(t) cos(t), by alpha: 2 x / b sin(t) cos(t), by beta: -sin(t)^2 / b^2.
// As in the models that use it b is inverted first. Forward: the same bits on every device, but for
// float64, and half types beside a phase that is not near (docs/dev/gpu-runs.md, snake).
// Twin: treadle.reference.snake.
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

}  // namespace detail

// For |t| <= kSnakeNear, and NaN. Of half types the sine is as accurate as those of bfloat16, which
// is much finer than what their results are rounded to. Signs of sine and cosine cancel.
template <class scalar_t, bool kProduct>
TREADLE_HD SnakeWaves<acc_t<scalar_t>> near_snake(acc_t<scalar_t> t) {
  if constexpr (is_half_type<scalar_t>) {
    uint32_t odd = 0;
    const float turns = detail::half_turns<Wave::kSine>(t, kBFloat16Small, &odd);
    const float s = detail::sinpi_bf16_near(turns);
    return {mul_rn(s, s), kProduct ? mul_rn(s, detail::cospi(turns)) : 0};
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

// For any t.
template <class scalar_t, bool kProduct>
TREADLE_HD SnakeWaves<acc_t<scalar_t>> any_snake(acc_t<scalar_t> t) {
  if constexpr (std::is_same_v<scalar_t, double>) {
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

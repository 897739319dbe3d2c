// Computes the results of one channel of snake from its parameters, and the gradients of alpha and
// beta from sums over the channel's elements.
#pragma once

#include "kernels/elementwise/snake_args.h"
#include "kernels/math/exp_any.h"
#include "kernels/math/snake.h"

namespace treadle {

// 1 / b, where b is alpha in the limit form and beta + eps in the other forms. In the limit form, a
// subnormal alpha, whose inverse may be infinite, is first scaled up to a normal number.
template <class acc>
struct SnakeInverse {
  acc scale, value;  // 1 / b = scale * value

  static TREADLE_HD SnakeInverse of(acc alpha, acc beta, const SnakeForm& form) {
    if (!form.limit) return {acc(1), 1 / math::add_rn(beta, static_cast<acc>(form.eps))};
    constexpr acc up = sizeof(acc) == 4 ? acc(0x1p+24) : acc(0x1p+53);
    const acc scale = math::select(math::snake_is_small(alpha), up, acc(1));
    return {scale, 1 / math::mul_rn(alpha, scale)};
  }
};

template <class acc>
struct SnakeChannel {
  SnakeForm form;
  acc alpha, beta;
  SnakeInverse<acc> inverse;

  TREADLE_HD SnakeChannel(acc stored_alpha, acc stored_beta, const SnakeForm& form)
      : form(form),
        alpha(form.logscale ? math::exp_any(stored_alpha) : stored_alpha),
        beta(form.logscale ? math::exp_any(stored_beta) : stored_beta),
        inverse(SnakeInverse<acc>::of(alpha, beta, form)) {}

  // Whether results need small_value.
  TREADLE_HD bool small() const { return form.limit && math::snake_is_small(alpha); }

  static TREADLE_HD acc value(acc x, acc sine, acc inverse) {
    return math::fma_rn(math::mul_rn(sine, sine), inverse, x);
  }

  // The limit form for an alpha that may be 0 or subnormal. For other alphas, inverse.scale is 1,
  // so the bits are those of value(). Other alphas need no special formula: where sin(t)^2
  // underflows, the exact sin(t)^2 / alpha is too small to change x.
  static TREADLE_HD acc small_value(acc x, acc t, acc sine, SnakeInverse<acc> inverse) {
    const acc square = math::mul_rn(math::mul_rn(sine, sine), inverse.scale);
    const acc tiny = math::select(inverse.scale > acc(1), math::kSnakeTiny<acc>, acc(0));
    const bool near = math::magnitude(t) < tiny;
    return math::fma_rn(math::select(near, t, square), math::select(near, x, inverse.value), x);
  }

  // The limit form's derivative with respect to alpha: w (2 x cos(t) - w) with w = sin(t) / alpha.
  TREADLE_HD acc limit_slope(acc grad, acc x, acc t, const math::SnakeWaves<acc>& waves) const {
    const bool near = math::magnitude(t) < math::kSnakeTiny<acc>;
    const acc w = math::select(near, x, waves.sine * inverse.scale * inverse.value);
    // grad is multiplied by w first. The product of w and the last factor may overflow to inf, and
    // inf times a gradient of 0 would be NaN.
    return (grad * w) * math::fma_if_fast(x + x, waves.cosine, -w);
  }

  // The factor of sin(t) cos(t) in the derivative with respect to x.
  TREADLE_HD acc x_slope() const { return form.limit ? acc(2) : 2 * (alpha * inverse.value); }

  // The gradient of the stored beta, from the sum of grad sin(t)^2.
  TREADLE_HD acc grad_beta(acc square) const {
    const acc grad = -(square * inverse.value) * inverse.value;
    return form.logscale ? grad * beta : grad;
  }

  // The gradient of the stored alpha, from two sums. `product` is the sum of grad x sin(t) cos(t)
  // or, in the limit form, of limit_slope; `square` is the sum of grad sin(t)^2.
  TREADLE_HD acc grad_alpha(acc product, acc square, bool beta_is_alpha) const {
    acc grad = form.limit ? product : 2 * (product * inverse.value);
    if (form.logscale) grad *= alpha;
    return beta_is_alpha && !form.limit ? grad + grad_beta(square) : grad;
  }
};

}  // namespace treadle

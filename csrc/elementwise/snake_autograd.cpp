// Derivatives of snake. The backward pass is one fused op, snake_backward. If it may be
// differentiated again, it is composed of differentiable ops instead; tangents are always composed.
// The compositions use the formulas of kernels/math/snake.h, in float32 for half types. With
// logscale, they also differentiate exp.
#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>

#include "elementwise/snake.h"
#include "treadle/ops.h"

namespace treadle {
namespace {

// sin(t) / t (1 at t = 0), with derivatives of every order. Near 0, where terms in the derivatives
// of the quotient would cancel, this is a series whose first omitted term is below 1e-22.
Tensor sine_quotient(const Tensor& t) {
  constexpr double kNear = 0.5;
  constexpr int kTerms = 10;
  const Tensor near = t.abs().lt(kNear);
  // The branch that is not taken needs a finite gradient, because its gradient is multiplied by 0.
  const Tensor q = at::where(near, t, 0.0).square(), other = at::where(near, 1.0, t);
  const auto term = [&q](int k) { return q / (2 * k * (2 * k + 1)); };
  Tensor series = 1 - term(kTerms - 1);
  for (int k = kTerms - 2; k > 0; --k) series = 1 - series * term(k);
  return at::where(near, series, sine(other) / other);
}

// The arguments of a call in the form that its derivatives use: in the dtype of the computation,
// without logarithms, and with alpha in place of a missing beta.
struct SnakeCall {
  Tensor x, alpha, beta;  // alpha and beta broadcast with x
  SnakeForm form;
  bool beta_is_alpha;

  SnakeCall(const Tensor& x, const Tensor& alpha, const Tensor& beta, std::optional<double> eps,
            bool logscale, ScalarType result)
      : form(snake_form(beta.defined(), eps, logscale)), beta_is_alpha(!beta.defined()) {
    const ScalarType dtype = at::toOpMathType(result);
    const auto parameter = [&](const Tensor& stored) {
      const Tensor t = along_channels(cast(stored, dtype), x);
      return logscale ? t.exp() : t;
    };
    this->x = cast(x, dtype);
    this->alpha = parameter(alpha);
    this->beta = beta_is_alpha ? this->alpha : parameter(beta);
  }

  Tensor phase() const { return alpha * x; }
  Tensor inverse() const { return beta.add(form.eps).reciprocal(); }

  // The derivative of the limit form with respect to alpha.
  Tensor limit_slope(const Tensor& t) const {
    const Tensor w = x * sine_quotient(t);
    return w * (2 * x * cosine(t) - w);
  }

  // The tangent of a parameter, computed from that of the argument. With logscale, the argument is
  // the parameter's logarithm.
  Tensor along(const Tensor& moved, const Tensor& parameter) const {
    const Tensor t = along_channels(cast(moved, x.scalar_type()), x);
    return form.logscale ? t * parameter : t;
  }

  // The tangent of the result. Undefined tangents of x, alpha and beta count as zero.
  Tensor tangent(const Tensor& dx, const Tensor& stored_dalpha, const Tensor& stored_dbeta) const {
    const Tensor t = phase();
    const Tensor dalpha = stored_dalpha.defined() ? along(stored_dalpha, alpha) : Tensor();
    if (form.limit) {
      const Tensor by_x = dx.defined() ? dx + 2 * dx * (sine(t) * cosine(t)) : Tensor();
      return dalpha.defined() ? plus(by_x, dalpha * limit_slope(t)) : by_x;
    }
    const Tensor b = inverse();
    const Tensor dt = plus(times(dx, alpha), times(dalpha, x));
    Tensor result = dx;
    if (dt.defined()) result = plus(result, dt * (sine(t) * cosine(t)) * (2 * b));
    if (stored_dbeta.defined()) {
      const Tensor dbeta = along(stored_dbeta, beta);
      result = minus(result, dbeta * sine(t).square() * b.square());
    }
    return result;
  }

  // The gradient of an argument alpha or beta, computed from the gradients of all elements.
  Tensor to_parameter(const Tensor& grads, const Tensor& parameter, const Tensor& stored) const {
    const Tensor sum = at::sum_to(grads, parameter.sym_sizes());
    const Tensor grad = form.logscale ? sum * parameter : sum;
    return cast(grad.reshape_symint(stored.sym_sizes()), stored.scalar_type());
  }

  // Gradients with respect to x, alpha and beta where `mask` is true, one value per element of x.
  Tensors3 gradients(const Tensor& grad, std::array<bool, 3> mask) const {
    const Tensor t = phase(), product = sine(t) * cosine(t);
    Tensor by_x, by_alpha, by_beta;
    if (form.limit) {
      if (mask[0]) by_x = grad + 2 * grad * product;
      if (mask[1]) by_alpha = grad * limit_slope(t);
      return {by_x, by_alpha, by_beta};
    }
    const Tensor b = inverse(), slope = grad * product * (2 * b);
    if (mask[0]) by_x = grad + slope * alpha;
    if (mask[1]) by_alpha = slope * x;
    if (mask[beta_is_alpha ? 1 : 2]) by_beta = -grad * sine(t).square() * b.square();
    if (beta_is_alpha) return {by_x, plus(by_alpha, by_beta), Tensor()};
    return {by_x, by_alpha, by_beta};
  }
};

Tensors3 snake_backward_autograd(c10::DispatchKeySet keys, const Tensor& grad, const Tensor& x,
                                 const Tensor& alpha, const OptionalTensor& beta,
                                 std::optional<double> eps, std::array<bool, 3> mask,
                                 bool logscale) {
  const Tensor b = value_or_undefined(beta);
  if (!has_tangent(grad, x, alpha, b) && !compute_requires_grad(grad, x, alpha, b)) {
    return below_autograd(snake_backward_op(), keys, grad, x, alpha, beta, eps, mask, logscale);
  }
  const ScalarType compute = check_snake_backward(grad, x, alpha, beta).compute;
  const SnakeCall call(x, alpha, b, eps, logscale, compute);
  const auto [by_x, by_alpha, by_beta] = call.gradients(cast(grad, call.x.scalar_type()), mask);
  const auto sums = [&](const Tensor& by, const Tensor& parameter, const Tensor& stored) {
    return by.defined() ? call.to_parameter(by, parameter, stored) : by;
  };
  return {cast(by_x, x.scalar_type()), sums(by_alpha, call.alpha, alpha),
          sums(by_beta, call.beta, b)};
}

}  // namespace

variable_list SnakeOp::Backward::backward(const variable_list& grads, const Need& need,
                                          const Tensor& x, const Tensor& alpha, const Tensor& beta,
                                          std::optional<double> eps, bool logscale) {
  auto [grad_x, grad_alpha, grad_beta] =
      snake_backward_op().call(grads[0], x, alpha, optional(beta), eps,
                               {need[0], need[1], need.size() > 2 && need[2]}, logscale);
  return {grad_x, grad_alpha, grad_beta};
}

Tensor SnakeOp::jvp(const Tangents& t, const Tensor& x, const Tensor& alpha,
                    const OptionalTensor& beta, std::optional<double> eps, bool logscale,
                    const Tensor& result) {
  const ScalarType compute = check_snake("snake", x, alpha, beta, Tensor()).compute;
  const SnakeCall call(x, alpha, value_or_undefined(beta), eps, logscale, compute);
  const Tensor moved =
      call.tangent(cast(t[0], call.x.scalar_type()), t[1], has(beta) ? t[2] : t[1]);
  return cast(moved, result.scalar_type());
}

TORCH_LIBRARY_IMPL(treadle, Autograd, m) { m.impl("snake_backward", snake_backward_autograd); }

}  // namespace treadle

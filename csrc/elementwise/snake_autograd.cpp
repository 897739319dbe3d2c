// The derivatives of snake. The first is one fused op, snake_backward. Where a derivative of that
// may be asked for it is composed of ops that have all of them, and so are tangents. With t =
// alpha x and b = beta + eps the derivatives of x + sin(t)^2 / b are, by x: 1 + alpha sin(2t) / b,
// by alpha: x sin(2t) / b, by beta: -sin(t)^2 / b^2.
#include "common/autograd.h"
#include "elementwise/snake.h"
#include "treadle/ops.h"

namespace treadle {
namespace {

// A call as its derivatives see it: beta is alpha if it was not given.
struct SnakeCall {
  Tensor x, alpha, beta;
  double eps;

  Tensor alpha_view() const { return along_channels(alpha, x); }
  Tensor inverse() const { return along_channels(beta, x).add(eps).reciprocal(); }
  Tensor phase() const { return alpha_view() * x; }

  // What the tangents of x, alpha and beta, those that are defined, make of the result.
  Tensor tangent(const Tensor& dx, const Tensor& dalpha, const Tensor& dbeta) const {
    const Tensor t = phase(), b = inverse();
    Tensor dt = times(dx, alpha_view());
    if (dalpha.defined()) dt = plus(dt, along_channels(dalpha, x) * x);
    Tensor result = dx;
    if (dt.defined()) result = plus(result, dt * (sine(t) * cosine(t)) * (2 * b));
    if (dbeta.defined()) {
      result = minus(result, along_channels(dbeta, x) * sine(t).square() * b.square());
    }
    return result;
  }

  Tensor to_parameter(const Tensor& grad, const Tensor& parameter) const {
    const Tensor sum = at::sum_to(grad, along_channels(parameter, x).sym_sizes());
    return cast(sum.reshape_symint(parameter.sym_sizes()), parameter.scalar_type());
  }

  Tensors3 gradients(const Tensor& grad, std::array<bool, 3> mask, bool beta_is_alpha) const {
    const Tensor t = phase(), b = inverse(), s = sine(t);
    Tensor grad_x, grad_alpha, grad_beta;
    if (mask[0] || mask[1]) {
      const Tensor slope = grad * (s * cosine(t)) * (2 * b);
      if (mask[0]) grad_x = cast(grad + slope * alpha_view(), x.scalar_type());
      if (mask[1]) grad_alpha = to_parameter(slope * x, alpha);
    }
    const bool into_alpha = mask[1] && beta_is_alpha;
    if (into_alpha || (mask[2] && !beta_is_alpha)) {
      grad_beta = to_parameter(-grad * s.square() * b.square(), beta);
    }
    if (into_alpha) return {grad_x, grad_alpha + grad_beta, Tensor()};
    return {grad_x, grad_alpha, grad_beta};
  }
};

SnakeCall call_of(const Tensor& x, const Tensor& alpha, const Tensor& beta, double eps) {
  return {x, alpha, beta.defined() ? beta : alpha, eps};
}

struct SnakeTangents {
  Tensor x, alpha, beta;

  SnakeTangents(const Tensor& x, const Tensor& alpha, const Tensor& beta)
      : x(tangent(x)), alpha(tangent(alpha)), beta(tangent(beta.defined() ? beta : alpha)) {}

  // Of the result of a call at these primals, in its dtype.
  Tensor of(const SnakeCall& call, const Tensor& result) const {
    return cast(call.tangent(x, alpha, beta), result.scalar_type());
  }
};

struct SnakeBackward : OpNode<SnakeBackward, Tensor, Tensor, Tensor, double> {
  static constexpr const char* kName = "SnakeBackward";
  static variable_list backward(const variable_list& grads, const Need& need, const Tensor& x,
                                const Tensor& alpha, const Tensor& beta, double eps) {
    auto [grad_x, grad_alpha, grad_beta] = snake_backward_op().call(
        grads[0], x, alpha, optional(beta), eps, {need[0], need[1], need.size() > 2 && need[2]});
    return {grad_x, grad_alpha, grad_beta};
  }
};

Tensor snake_autograd(c10::DispatchKeySet keys, const Tensor& x, const Tensor& alpha,
                      const OptionalTensor& beta, double eps) {
  const Tensor b = value_or_undefined(beta);
  auto node = SnakeBackward::record(x, alpha, b);
  Tensor out = below_autograd(snake_op(), keys, x, alpha, beta, eps);
  if (node) {
    set_history(out, node);
    node->save(x, alpha, b, eps);
  }
  if (has_tangent(x, alpha, b)) {
    const SnakeCall call = call_of(primal(x), primal(alpha), primal(b), eps);
    set_tangent(out, SnakeTangents(x, alpha, b).of(call, out));
  }
  return out;
}

void snake_inplace_autograd(c10::DispatchKeySet keys, Tensor& x, const Tensor& alpha,
                            const OptionalTensor& beta, double eps) {
  const Tensor b = value_or_undefined(beta);
  torch::autograd::check_inplace(x, compute_requires_grad(x, alpha, b));
  auto node = SnakeBackward::record(x, alpha, b);
  const bool moved = has_tangent(x, alpha, b);
  const SnakeTangents tangents(x, alpha, b);
  // Derivatives are at the old value, which is about to be overwritten.
  const Tensor old = node || moved ? x.clone() : Tensor();
  if (node) node->save(old, alpha, b, eps);
  below_autograd_inplace(snake_inplace_op(), keys, x, alpha, beta, eps);
  if (node) torch::autograd::rebase_history(x, node);
  if (moved) {
    const SnakeCall call = call_of(primal(old), primal(alpha), primal(b), eps);
    set_tangent(x, tangents.of(call, x), /*inplace=*/true);
  }
}

void snake_out_autograd(c10::DispatchKeySet keys, const Tensor& x, const Tensor& alpha,
                        const OptionalTensor& beta, double eps, Tensor& out) {
  refuse_autograd("snake", "out", x, alpha, value_or_undefined(beta), out);
  below_autograd_inplace(snake_out_op(), keys, x, alpha, beta, eps, out);
}

Tensors3 snake_backward_autograd(c10::DispatchKeySet keys, const Tensor& grad, const Tensor& x,
                                 const Tensor& alpha, const OptionalTensor& beta, double eps,
                                 std::array<bool, 3> mask) {
  const Tensor b = value_or_undefined(beta);
  if (!has_tangent(grad, x, alpha, b) && !compute_requires_grad(grad, x, alpha, b)) {
    return below_autograd(snake_backward_op(), keys, grad, x, alpha, beta, eps, mask);
  }
  check_snake_backward(grad, x, alpha, beta);
  return call_of(x, alpha, b, eps).gradients(grad, mask, /*beta_is_alpha=*/!b.defined());
}

}  // namespace

TORCH_LIBRARY_IMPL(treadle, Autograd, m) {
  m.impl("snake", snake_autograd);
  m.impl("snake.out", snake_out_autograd);
  m.impl("snake_", snake_inplace_autograd);
  m.impl("snake_backward", snake_backward_autograd);
}

}  // namespace treadle

// sine: out = sin(x); sine_backward: grad * cos(x). x [*]; integers give the default float dtype.
// Twins: cuda/sine.cpp, cpu/sine.cpp, kernels/sine.cu.
#include "sine.h"

#include "autograd.h"
#include "rules.h"
#include "treadle/ops.h"

namespace treadle {

// ---- dispatcher call

static const auto& sine_op() {
  static const auto op = find_op<Tensor(const Tensor&)>("treadle::sine");
  return op;
}

static const auto& sine_out_op() {
  static const auto op = find_op<void(const Tensor&, Tensor&)>("treadle::sine", "out");
  return op;
}

static const auto& sine_inplace_op() {
  static const auto op = find_op<void(Tensor&)>("treadle::sine_");
  return op;
}

static const auto& sine_backward_op() {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&)>("treadle::sine_backward");
  return op;
}

Tensor sine(const Tensor& x) { return sine_op().call(x); }

Tensor& sine_out(Tensor& out, const Tensor& x) {
  sine_out_op().call(x, out);
  return out;
}

Tensor& sine_(Tensor& x) {
  sine_inplace_op().call(x);
  return x;
}

Tensor sine_backward(const Tensor& grad, const Tensor& x) {
  return sine_backward_op().call(grad, x);
}

// ---- check

ScalarType check_sine(const char* op, const Tensor& x, const Tensor& out) {
  const bool integral = c10::isIntegralType(x.scalar_type(), /*includeBool=*/true);
  const auto compute = integral ? c10::get_default_dtype_as_scalartype() : x.scalar_type();
  check_compute_dtype(op, "x", compute);
  if (!out.defined()) return compute;
  const char* written = out.is_same(x) ? "x" : "out";
  check_result(op, written, out, compute, x.device());
  check_memory(op, written, out, "x", x);
  return compute;
}

ScalarType check_sine_backward(const Tensor& grad, const Tensor& x) {
  constexpr const char* op = "sine_backward";
  TORCH_CHECK(is_floating_dtype(x.scalar_type()), op, ": x must have a floating-point dtype, got ",
              dtype_name(x.scalar_type()));
  TORCH_CHECK(grad.scalar_type() == x.scalar_type(), op, ": grad must have the dtype of x, ",
              dtype_name(x.scalar_type()), ", got ", dtype_name(grad.scalar_type()));
  TORCH_CHECK(grad.device() == x.device(), op, ": grad must be on the device of x, ", x.device(),
              ", got ", grad.device());
  check_broadcast(op, "x", x, "grad", grad);
  return x.scalar_type();
}

// ---- meta

static Tensor sine_meta(const Tensor& x) {
  check_sine("sine", x, Tensor());
  return at::sin(x);
}

static void sine_out_meta(const Tensor& x, Tensor& out) {
  check_sine("sine", x, out);
  at::sin_outf(x, out);
}

static void sine_inplace_meta(Tensor& x) {
  check_sine("sine_", x, x);
  x.sin_();
}

static Tensor sine_backward_meta(const Tensor& grad, const Tensor& x) {
  check_sine_backward(grad, x);
  return at::mul(grad, x);
}

// ---- CPU

static void sine_cpu(ElementwiseLoop& loop) {
  run_cpu(loop, [](const cpu::Piece& piece) { cpu::sine(piece); });
}

static void sine_backward_cpu(ElementwiseLoop& loop) {
  run_cpu(loop, [](const cpu::Piece& piece) { cpu::sine_backward(piece); });
}

// ---- autograd

struct SineBackward : OpNode<SineBackward, Tensor> {
  static constexpr const char* kName = "SineBackward";
  static variable_list backward(const variable_list& grads, const Need&, const Tensor& x) {
    return {sine_backward(grads[0], x)};
  }
};

// out = grad * cos(x): linear in grad, and d out / dx = -grad * sin(x).
struct SineBackwardBackward : OpNode<SineBackwardBackward, Tensor, Tensor> {
  static constexpr const char* kName = "SineBackwardBackward";
  static variable_list backward(const variable_list& grads, const Need& need, const Tensor& grad,
                                const Tensor& x) {
    variable_list result(2);
    if (need[0]) result[0] = at::sum_to(sine_backward(grads[0], x), grad.sym_sizes());
    if (need[1]) result[1] = at::sum_to(-grads[0] * grad * sine(x), x.sym_sizes());
    return result;
  }
};

static Tensor sine_autograd(c10::DispatchKeySet keys, const Tensor& x) {
  auto node = SineBackward::record(x);
  Tensor out = below_autograd(sine_op(), keys, x);
  if (node) {
    set_history(out, node);
    node->save(x);
  }
  if (isFwGradDefined(x)) set_tangent(out, sine_backward(tangent(x), primal(x)));
  return out;
}

static void sine_inplace_autograd(c10::DispatchKeySet keys, Tensor& x) {
  torch::autograd::check_inplace(x, compute_requires_grad(x));
  auto node = SineBackward::record(x);
  const Tensor x_tangent = tangent(x);
  // The derivative is at the old value, which is about to be overwritten.
  const Tensor old = node || x_tangent.defined() ? x.clone() : Tensor();
  if (node) node->save(old);
  below_autograd_inplace(sine_inplace_op(), keys, x);
  if (node) torch::autograd::rebase_history(x, node);
  if (x_tangent.defined()) set_tangent(x, sine_backward(x_tangent, primal(old)), /*inplace=*/true);
}

static void sine_out_autograd(c10::DispatchKeySet keys, const Tensor& x, Tensor& out) {
  refuse_autograd("sine", x, out);
  below_autograd_inplace(sine_out_op(), keys, x, out);
}

static Tensor sine_backward_autograd(c10::DispatchKeySet keys, const Tensor& grad,
                                     const Tensor& x) {
  auto node = SineBackwardBackward::record(grad, x);
  Tensor out = below_autograd(sine_backward_op(), keys, grad, x);
  if (node) {
    set_history(out, node);
    node->save(grad, x);
  }
  const Tensor grad_tangent = tangent(grad), x_tangent = tangent(x);
  Tensor moved;
  if (grad_tangent.defined()) moved = sine_backward(grad_tangent, primal(x));
  if (x_tangent.defined()) moved = plus(moved, -x_tangent * primal(grad) * sine(primal(x)));
  set_tangent(out, moved);
  return out;
}

// ---- registration

TORCH_LIBRARY_IMPL(treadle, CPU, m) { register_sine<sine_cpu, sine_backward_cpu>(m); }

TORCH_LIBRARY_IMPL(treadle, Meta, m) {
  m.impl("sine", sine_meta);
  m.impl("sine.out", sine_out_meta);
  m.impl("sine_", sine_inplace_meta);
  m.impl("sine_backward", sine_backward_meta);
}

TORCH_LIBRARY_IMPL(treadle, Autograd, m) {
  m.impl("sine", sine_autograd);
  m.impl("sine.out", sine_out_autograd);
  m.impl("sine_", sine_inplace_autograd);
  m.impl("sine_backward", sine_backward_autograd);
}

TORCH_LIBRARY_IMPL(treadle, FuncTorchBatched, m) {
  for (const char* name : {"sine", "sine_", "sine_backward"}) {
    m.impl(name, TREADLE_RULE(elementwise_batch_rule));
  }
}

}  // namespace treadle

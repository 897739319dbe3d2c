// scale: out = x * factor, a Python number. x [*] of any number dtype; promotion as x * factor. The
// model for other ops. Twins: cuda/scale.cpp, cpu/scale.cpp, kernels/elementwise/scale.cu.
#include "elementwise/scale.h"

#include <ATen/ScalarOps.h>

#include "common/autograd.h"
#include "common/rules.h"
#include "common/vmap.h"
#include "treadle/ops.h"

namespace treadle {

// ---- dispatcher call

static const auto& scale_op() {
  static const auto op = find_op<Tensor(const Tensor&, const Scalar&)>("treadle::scale");
  return op;
}

static const auto& scale_out_op() {
  static const auto op =
      find_op<void(const Tensor&, const Scalar&, Tensor&)>("treadle::scale", "out");
  return op;
}

static const auto& scale_inplace_op() {
  static const auto op = find_op<void(Tensor&, const Scalar&)>("treadle::scale_");
  return op;
}

Tensor scale(const Tensor& x, const Scalar& factor) { return scale_op().call(x, factor); }

Tensor& scale_out(Tensor& out, const Tensor& x, const Scalar& factor) {
  scale_out_op().call(x, factor, out);
  return out;
}

Tensor& scale_(Tensor& x, const Scalar& factor) {
  scale_inplace_op().call(x, factor);
  return x;
}

// ---- check

ScalarType check_scale(const char* op, const Tensor& x, const Scalar& factor, const Tensor& out) {
  TORCH_CHECK(!factor.isComplex(), op, ": factor must be a real number, got a complex one");
  const ScalarType compute = promote(x, factor);
  check_unary_output(op, x, compute, out);
  return compute;
}

// ---- meta: TensorIterator refuses symbolic sizes, so the torch twin makes the result

static Tensor scale_meta(const Tensor& x, const Scalar& factor) {
  check_scale("scale", x, factor, Tensor());
  return at::mul(x, factor);
}

static void scale_out_meta(const Tensor& x, const Scalar& factor, Tensor& out) {
  check_scale("scale", x, factor, out);
  at::mul_outf(x, at::native::wrapped_scalar_tensor(factor), out);
}

static void scale_inplace_meta(Tensor& x, const Scalar& factor) {
  check_scale("scale_", x, factor, x);
  x.mul_(factor);
}

// ---- CPU

static void scale_cpu(ElementwiseLoop& loop, const Scalar& factor) {
  run_cpu(loop,
          [factor = to_scalar_arg(factor)](const cpu::Tile2d& tile) { cpu::scale(tile, factor); });
}

// ---- autograd: linear, so grad_x = scale(grad, factor), and so is the tangent

struct ScaleBackward : OpNode<ScaleBackward, Scalar> {
  static constexpr const char* kName = "ScaleBackward";
  static variable_list backward(const variable_list& grads, const Need&, const Scalar& factor) {
    return {scale(grads[0], factor)};
  }
};

static Tensor scale_autograd(c10::DispatchKeySet keys, const Tensor& x, const Scalar& factor) {
  auto node = ScaleBackward::record(x);
  Tensor out = below_autograd(scale_op(), keys, x, factor);
  if (node) {
    set_history(out, node);
    node->save(factor);
  }
  if (isFwGradDefined(x)) set_tangent(out, scale(tangent(x), factor));
  return out;
}

static void scale_inplace_autograd(c10::DispatchKeySet keys, Tensor& x, const Scalar& factor) {
  torch::autograd::check_inplace(x, compute_requires_grad(x));
  auto node = ScaleBackward::record(x);
  const Tensor x_tangent = tangent(x);
  below_autograd_inplace(scale_inplace_op(), keys, x, factor);
  if (node) {
    torch::autograd::rebase_history(x, node);
    node->save(factor);
  }
  if (x_tangent.defined()) set_tangent(x, scale(x_tangent, factor), /*inplace=*/true);
}

static void scale_out_autograd(c10::DispatchKeySet keys, const Tensor& x, const Scalar& factor,
                               Tensor& out) {
  refuse_autograd("scale", "out", x, out);
  below_autograd_inplace(scale_out_op(), keys, x, factor, out);
}

// ---- registration

TORCH_LIBRARY_IMPL(treadle, CPU, m) { register_scale<scale_cpu>(m); }

TORCH_LIBRARY_IMPL(treadle, Meta, m) {
  m.impl("scale", scale_meta);
  m.impl("scale.out", scale_out_meta);
  m.impl("scale_", scale_inplace_meta);
}

TORCH_LIBRARY_IMPL(treadle, Autograd, m) {
  m.impl("scale", scale_autograd);
  m.impl("scale.out", scale_out_autograd);
  m.impl("scale_", scale_inplace_autograd);
}

TORCH_LIBRARY_IMPL(treadle, FuncTorchBatched, m) {
  m.impl("scale", TREADLE_RULE(elementwise_batch_rule));
  m.impl("scale_", TREADLE_RULE(elementwise_batch_rule));
}

}  // namespace treadle

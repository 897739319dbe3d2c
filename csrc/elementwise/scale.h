// scale: out = x * factor, where factor is a Python number. x [*] has an integer or floating-point
// dtype, and is promoted as in torch. This op is the template for new ops. Kernels:
// kernels/elementwise/scale.cu, cpu/scale.cpp.
#pragma once

#include "elementwise/op.h"
#include "treadle/ops.h"

namespace treadle {

struct ScaleOp : ElementwiseOp<ScaleOp, const Scalar&> {
  static constexpr const char* kName = "scale";

  static ScalarType check(const char* op, const Tensor& x, const Scalar& factor,
                          const Tensor& out) {
    TORCH_CHECK(!factor.isComplex(), op, ": factor must be a real number, got a complex one");
    const ScalarType compute = promote(x, factor);
    check_unary_output(op, x, compute, out);
    return compute;
  }

  static Tensor twin(const Tensor& x, const Scalar& factor) { return at::mul(x, factor); }

  // The op is linear, so this computes both the gradient of x and the tangent of the result.
  static Tensor vjp(const Tensor& grad, const Scalar& factor) { return scale(grad, factor); }

  struct Backward : OpNode<Backward, Scalar> {
    static constexpr const char* kName = "ScaleBackward";
    static variable_list backward(const variable_list& grads, const Need&, const Scalar& factor) {
      return {vjp(grads[0], factor)};
    }
  };
  static auto saved(const Tensor&, const Scalar& factor) { return std::tie(factor); }

  static Tensor jvp(const Tangents& t, const Tensor&, const Scalar& factor, const Tensor&) {
    return vjp(t[0], factor);
  }
};

}  // namespace treadle

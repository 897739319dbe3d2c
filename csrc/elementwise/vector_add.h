// vector_add: out = a + alpha * b, computed with one fma. a and b [*] are broadcast and promoted
// as in torch.add; b may be a number. Kernels: kernels/elementwise/vector_add.cu,
// cpu/vector_add.cpp.
#pragma once

#include "elementwise/op.h"
#include "treadle/ops.h"

namespace treadle {

// alpha * t. Like torch, multiplies by alpha before any sum or cast. alpha = 1 costs nothing.
inline Tensor scaled(const Tensor& t, const Scalar& alpha) {
  const bool is_one = !alpha.isSymbolic() && alpha.equal(1);
  return is_one ? t : scale(t, alpha);
}

struct VectorAddOp : ElementwiseOp<VectorAddOp, const Tensor&, const Scalar&> {
  static constexpr const char* kName = "vector_add";

  static ScalarType check(const char* op, const Tensor& a, const Tensor& b, const Scalar& alpha,
                          const Tensor& out);

  static Tensor twin(const Tensor& a, const Tensor& b, const Scalar& alpha) {
    return at::add(a, b, alpha);
  }

  // The autograd engine sums each gradient over its broadcast dimensions and casts it to the dtype
  // of the argument.
  struct Backward : OpNode<Backward, Scalar> {
    static constexpr const char* kName = "VectorAddBackward";
    static variable_list backward(const variable_list& grads, const Need& need,
                                  const Scalar& alpha) {
      return {grads[0], need[1] ? scaled(grads[0], alpha) : Tensor()};
    }
  };
  static auto saved(const Tensor&, const Tensor&, const Scalar& alpha) { return std::tie(alpha); }

  static Tensor jvp(const Tangents& t, const Tensor&, const Tensor&, const Scalar& alpha,
                    const Tensor& result) {
    if (t[0].defined() && t[1].defined()) {
      return vector_add(t[0], t[1], alpha).to(result.scalar_type());
    }
    return alone(t[0].defined() ? t[0] : scaled(t[1], alpha), result);
  }

  // The tangent of the result if t is the only tangent: t, expanded, cast and copied. t is not
  // copied into a tensor made like the result: torch.func may have batched t but not the result,
  // and a batched tensor cannot be written into one that is not.
  static Tensor alone(const Tensor& t, const Tensor& result) {
    return t.expand_symint(result.sym_sizes()).to(result.scalar_type(), false, /*copy=*/true);
  }
};

struct VectorAddNumberOp : ElementwiseOp<VectorAddNumberOp, const Scalar&, const Scalar&> {
  static constexpr const char* kName = "vector_add";
  static constexpr const char* kOverload = "Scalar";
  static constexpr unsigned kForms = kFunctional | kInPlace | kBatched;
  static constexpr bool kKeepsTangent = true;

  static ScalarType check(const char* op, const Tensor& a, const Scalar& b, const Scalar& alpha,
                          const Tensor& out);

  static Tensor twin(const Tensor& a, const Scalar& b, const Scalar& alpha) {
    return at::add(a, b, alpha);
  }

  static auto parameters(const Scalar& b, const Scalar& alpha) {
    return std::tuple(to_scalar_arg(b), /*scalar_is_b=*/true, to_scalar_arg(alpha));
  }

  struct Backward : OpNode<Backward> {
    static constexpr const char* kName = "VectorAddScalarBackward";
    static variable_list backward(const variable_list& grads, const Need&) { return {grads[0]}; }
  };
  static auto saved(const Tensor&, const Scalar&, const Scalar&) { return std::tuple<>(); }

  static Tensor jvp(const Tangents& t, const Tensor&, const Scalar&, const Scalar&,
                    const Tensor& result) {
    return VectorAddOp::alone(t[0], result);
  }
};

}  // namespace treadle

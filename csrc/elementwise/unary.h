// Elementwise ops of one tensor, one for each row of TREADLE_UNARY_OPS: out = f(x), and
// `<op>_backward`, which is grad * f'(x). An op's struct defines its names and kIntegers: whether
// integers give integers instead of the default floating-point dtype. unary.cpp defines t * f''(x).
#pragma once

#include "elementwise/op.h"
#include "kernels/elementwise/unary_ops.h"

namespace treadle {

// grad * f'(x), which is linear in grad.
template <class Op>
struct UnaryGradient : ElementwiseOp<UnaryGradient<Op>, const Tensor&> {
  static constexpr const char* kName = Op::kBackwardName;
  static constexpr unsigned kForms = kFunctional | kBatched;

  static ScalarType check(const char* op, const Tensor& grad, const Tensor& x, const Tensor&) {
    TORCH_CHECK(is_floating_dtype(x.scalar_type()), op,
                ": x must have a floating-point dtype, got ", dtype_name(x.scalar_type()));
    TORCH_CHECK(grad.scalar_type() == x.scalar_type(), op, ": grad must have the dtype of x, ",
                dtype_name(x.scalar_type()), ", got ", dtype_name(grad.scalar_type()));
    TORCH_CHECK(grad.device() == x.device(), op, ": grad must be on the device of x, ", x.device(),
                ", got ", grad.device());
    check_broadcast(op, "x", x, "grad", grad);
    return x.scalar_type();
  }

  static Tensor twin(const Tensor& grad, const Tensor& x) { return at::mul(grad, x); }

  static Tensor vjp(const Tensor& grad, const Tensor& x) { return UnaryGradient::call(grad, x); }

  // The autograd engine sums each gradient over its broadcast dimensions.
  struct Backward : OpNode<Backward, Tensor, Tensor> {
    static constexpr const char* kName = Op::kBackwardNode;
    static variable_list backward(const variable_list& grads, const Need& need, const Tensor& grad,
                                  const Tensor& x) {
      variable_list result(2);
      if (need[0]) result[0] = vjp(grads[0], x);
      if (need[1]) result[1] = Op::times_second(grads[0] * grad, x);
      return result;
    }
  };
  static auto saved(const Tensor& grad, const Tensor& x) { return std::tie(grad, x); }

  static Tensor jvp(const typename UnaryGradient::Tangents& t, const Tensor& grad, const Tensor& x,
                    const Tensor&) {
    const Tensor by_grad = t[0].defined() ? vjp(t[0], x) : Tensor();
    return t[1].defined() ? plus(by_grad, Op::times_second(t[1] * grad, x)) : by_grad;
  }
};

template <class Op>
struct UnaryOp : ElementwiseOp<Op> {
  static constexpr bool kAtX = true;

  static ScalarType check(const char* op, const Tensor& x, const Tensor& out) {
    const bool to_float =
        !Op::kIntegers && c10::isIntegralType(x.scalar_type(), /*includeBool=*/true);
    const auto compute = to_float ? c10::get_default_dtype_as_scalartype() : x.scalar_type();
    check_unary_output(op, x, compute, out);
    return compute;
  }

  static Tensor twin(const Tensor& x) { return Op::kIntegers ? at::neg(x) : at::sin(x); }

  static Tensor vjp(const Tensor& grad, const Tensor& x) {
    return UnaryGradient<Op>::call(grad, x);
  }

  struct Backward : OpNode<Backward, Tensor> {
    static constexpr const char* kName = Op::kNode;
    static variable_list backward(const variable_list& grads, const Need&, const Tensor& x) {
      return {vjp(grads[0], x)};
    }
  };
  static auto saved(const Tensor& x) { return std::tie(x); }

  static Tensor jvp(const std::array<Tensor, 1>& t, const Tensor& x, const Tensor&) {
    return vjp(t[0], x);
  }
};

#define TREADLE_UNARY_STRUCT(op, Type, integers)                                   \
  struct Type##Op : UnaryOp<Type##Op> {                                            \
    static constexpr const char* kName = #op;                                      \
    static constexpr const char* kBackwardName = #op "_backward";                  \
    static constexpr const char* kNode = #Type "Backward";                         \
    static constexpr const char* kBackwardNode = #Type "BackwardBackward";         \
    static constexpr bool kIntegers = integers;                                    \
    static Tensor times_second(const Tensor& t, const Tensor& x); /* t * f''(x) */ \
  };
TREADLE_UNARY_OPS(TREADLE_UNARY_STRUCT)
#undef TREADLE_UNARY_STRUCT

}  // namespace treadle

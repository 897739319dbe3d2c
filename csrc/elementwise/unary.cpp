// sine: out = sin(x), backward grad * cos(x). cosine: out = cos(x), backward -grad * sin(x). x has
// any shape. Formulas and kernels: kernels/elementwise/unary.cu, cpu/unary.cpp.
#include "elementwise/unary.h"

#include "treadle/ops.h"

namespace treadle {

// ---- second derivatives, composed of ops that are themselves differentiable

Tensor SineOp::times_second(const Tensor& t, const Tensor& x) { return cosine_backward(t, x); }

Tensor CosineOp::times_second(const Tensor& t, const Tensor& x) { return -sine_backward(t, x); }

// ---- C++ interface and registration

#define TREADLE_DEFINE_UNARY(op, Type, ...)                                                    \
  Tensor op(const Tensor& x) { return Type##Op::call(x); }                                     \
  Tensor& op##_out(Tensor& out, const Tensor& x) { return Type##Op::call_out(out, x); }        \
  Tensor& op##_(Tensor& x) { return Type##Op::call_inplace(x); }                               \
  Tensor op##_backward(const Tensor& grad, const Tensor& x) { return Type##Op::vjp(grad, x); } \
  TREADLE_REGISTER_ELEMENTWISE(Type##Op, cpu::op)                                              \
  TREADLE_REGISTER_ELEMENTWISE(UnaryGradient<Type##Op>, cpu::op##_backward)
TREADLE_UNARY_OPS(TREADLE_DEFINE_UNARY)

}  // namespace treadle

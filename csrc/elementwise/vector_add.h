// vector_add: out = a + alpha * b, one fma. a, b [*] broadcast and promote as in torch.add; b may
// be a number. Kernels: kernels/elementwise/{vector_add.cu,cpu/vector_add.cpp}.
#pragma once

#include <ATen/ExpandUtils.h>

#include "elementwise/op.h"
#include "treadle/ops.h"

namespace treadle {

// Scaled first, as torch does; alpha = 1 costs nothing.
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

  // Each gradient is summed over what was broadcast, in its argument's dtype.
  static Tensor reduced(const Tensor& grad, c10::SymIntArrayRef shape, int64_t dtype) {
    return at::sum_to(grad, shape).to(static_cast<ScalarType>(dtype));
  }

  using Shape = std::vector<c10::SymInt>;
  struct Backward : OpNode<Backward, Shape, int64_t, Shape, int64_t, Scalar> {
    static constexpr const char* kName = "VectorAddBackward";
    static variable_list backward(const variable_list& grads, const Need& need, const Shape& a,
                                  int64_t a_dtype, const Shape& b, int64_t b_dtype,
                                  const Scalar& alpha) {
      variable_list result(2);
      if (need[0]) result[0] = reduced(grads[0], a, a_dtype);
      if (need[1]) result[1] = reduced(scaled(grads[0], alpha), b, b_dtype);
      return result;
    }
  };
  static auto saved(const Tensor& a, const Tensor& b, const Scalar& alpha) {
    const auto dtype = [](const Tensor& t) { return static_cast<int64_t>(t.scalar_type()); };
    return std::tuple(a.sym_sizes().vec(), dtype(a), b.sym_sizes().vec(), dtype(b), alpha);
  }

  static Tensor jvp(const Tangents& t, const Tensor&, const Tensor&, const Scalar& alpha,
                    const Tensor& result) {
    if (t[0].defined() && t[1].defined()) {
      return vector_add(t[0], t[1], alpha).to(result.scalar_type());
    }
    return alone(t[0].defined() ? t[0] : scaled(t[1], alpha), result);
  }

  // A tangent of its own. Made from that of an argument, which torch.func may have batched where
  // the result is not.
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

// The checks of unary.h.
#include "elementwise/unary.h"

namespace treadle {

ScalarType check_unary(const char* op, bool integers, const Tensor& x, const Tensor& out) {
  const bool to_float = !integers && c10::isIntegralType(x.scalar_type(), /*includeBool=*/true);
  const auto compute = to_float ? c10::get_default_dtype_as_scalartype() : x.scalar_type();
  check_unary_output(op, x, compute, out);
  return compute;
}

ScalarType check_unary_backward(const char* op, const Tensor& grad, const Tensor& x) {
  TORCH_CHECK(is_floating_dtype(x.scalar_type()), op, ": x must have a floating-point dtype, got ",
              dtype_name(x.scalar_type()));
  TORCH_CHECK(grad.scalar_type() == x.scalar_type(), op, ": grad must have the dtype of x, ",
              dtype_name(x.scalar_type()), ", got ", dtype_name(grad.scalar_type()));
  TORCH_CHECK(grad.device() == x.device(), op, ": grad must be on the device of x, ", x.device(),
              ", got ", grad.device());
  check_broadcast(op, "x", x, "grad", grad);
  return x.scalar_type();
}

}  // namespace treadle

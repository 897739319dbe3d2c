#include "elementwise/vector_add.h"

#include <ATen/ExpandUtils.h>

namespace treadle {

static void check_alpha(const char* op, const Scalar& alpha, ScalarType compute) {
  TORCH_CHECK(!alpha.isComplex(), op, ": alpha must be a real number, got a complex one");
  TORCH_CHECK(is_floating_dtype(compute) || !alpha.isFloatingPoint(), op,
              ": alpha must be an integer where the result is ", dtype_name(compute),
              ", got a floating-point number");
  if (alpha.isSymbolic()) return;
  const ScalarType computed = c10::isReducedFloatingType(compute) ? at::kFloat : compute;
  const bool fits = visit_number(to_dtype(computed), [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>)
      return true;
    else if constexpr (std::is_floating_point_v<T>)
      return !c10::overflows<T>(alpha.toDouble());
    else
      return alpha.type() != ScalarType::UInt64 && !c10::overflows<T>(alpha.toLong());
  });
  TORCH_CHECK(fits, op, ": alpha must fit into ", dtype_name(computed), ", got ", alpha);
}

ScalarType VectorAddOp::check(const char* op, const Tensor& a, const Tensor& b, const Scalar& alpha,
                              const Tensor& out) {
  const ScalarType compute = promote(a, b);
  check_compute_dtype(op, "a + alpha * b", compute);
  check_alpha(op, alpha, compute);
  // A 0-dim CPU tensor counts as a number if the other tensor is on a GPU.
  const bool a_is_number = a.dim() == 0 && a.is_cpu(), b_is_number = b.dim() == 0 && b.is_cpu();
  TORCH_CHECK(a.device() == b.device() || b_is_number || (a_is_number && !out.is_same(a)), op,
              ": b must be on the device of a, ", a.device(), ", got ", b.device());
  const auto device = a_is_number ? b.device() : a.device();
  check_broadcast(op, "a", a, "b", b);
  if (!out.defined()) return compute;
  const char* written = out.is_same(a) ? "a" : "out";
  check_result(op, written, out, compute, device);
  if (out.is_same(a)) {
    check_inplace_shape(op, "a", a, at::infer_size_symint(a.sym_sizes(), b.sym_sizes()));
  }
  check_memory(op, written, out, "a", a);
  check_memory(op, written, out, "b", b);
  return compute;
}

ScalarType VectorAddNumberOp::check(const char* op, const Tensor& a, const Scalar& b,
                                    const Scalar& alpha, const Tensor& out) {
  TORCH_CHECK(!b.isComplex(), op, ": b must be a tensor or a real number, got a complex one");
  const ScalarType compute = promote(a, b);
  check_compute_dtype(op, "a + alpha * b", compute);
  check_alpha(op, alpha, compute);
  if (!out.defined()) return compute;
  check_result(op, "a", out, compute, a.device());
  check_memory(op, "a", out, "a", a);
  return compute;
}

// ---- C++ interface and registration

Tensor vector_add(const Tensor& a, const Tensor& b, const Scalar& alpha) {
  return VectorAddOp::call(a, b, alpha);
}

Tensor vector_add(const Tensor& a, const Scalar& b, const Scalar& alpha) {
  return VectorAddNumberOp::call(a, b, alpha);
}

Tensor& vector_add_out(Tensor& out, const Tensor& a, const Tensor& b, const Scalar& alpha) {
  return VectorAddOp::call_out(out, a, b, alpha);
}

Tensor& vector_add_(Tensor& a, const Tensor& b, const Scalar& alpha) {
  return VectorAddOp::call_inplace(a, b, alpha);
}

Tensor& vector_add_(Tensor& a, const Scalar& b, const Scalar& alpha) {
  return VectorAddNumberOp::call_inplace(a, b, alpha);
}

TREADLE_REGISTER_ELEMENTWISE(VectorAddOp, cpu::vector_add)
TREADLE_REGISTER_ELEMENTWISE(VectorAddNumberOp, cpu::vector_add_scalar)

}  // namespace treadle

// vector_add: out = a + alpha * b, one fma. a, b [*] broadcast and promote as in torch.add; b may
// be a number. Twins: cuda/vector_add.cpp, cpu/vector_add.cpp, kernels/elementwise/vector_add.cu.
#include "elementwise/vector_add.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ScalarOps.h>

#include "common/autograd.h"
#include "common/rules.h"
#include "common/vmap.h"
#include "treadle/ops.h"

namespace treadle {

// ---- dispatcher call

static const auto& add_op() {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, const Scalar&)>("treadle::vector_add");
  return op;
}

static const auto& add_number_op() {
  static const auto op =
      find_op<Tensor(const Tensor&, const Scalar&, const Scalar&)>("treadle::vector_add", "Scalar");
  return op;
}

static const auto& add_out_op() {
  static const auto op = find_op<void(const Tensor&, const Tensor&, const Scalar&, Tensor&)>(
      "treadle::vector_add", "out");
  return op;
}

static const auto& add_inplace_op() {
  static const auto op =
      find_op<void(Tensor&, const Tensor&, const Scalar&)>("treadle::vector_add_");
  return op;
}

static const auto& add_number_inplace_op() {
  static const auto op =
      find_op<void(Tensor&, const Scalar&, const Scalar&)>("treadle::vector_add_", "Scalar");
  return op;
}

Tensor vector_add(const Tensor& a, const Tensor& b, const Scalar& alpha) {
  return add_op().call(a, b, alpha);
}

Tensor vector_add(const Tensor& a, const Scalar& b, const Scalar& alpha) {
  return add_number_op().call(a, b, alpha);
}

Tensor& vector_add_out(Tensor& out, const Tensor& a, const Tensor& b, const Scalar& alpha) {
  add_out_op().call(a, b, alpha, out);
  return out;
}

Tensor& vector_add_(Tensor& a, const Tensor& b, const Scalar& alpha) {
  add_inplace_op().call(a, b, alpha);
  return a;
}

Tensor& vector_add_(Tensor& a, const Scalar& b, const Scalar& alpha) {
  add_number_inplace_op().call(a, b, alpha);
  return a;
}

// ---- check

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

ScalarType check_vector_add(const char* op, const Tensor& a, const Tensor& b, const Scalar& alpha,
                            const Tensor& out) {
  const ScalarType compute = promote(a, b);
  check_compute_dtype(op, "a + alpha * b", compute);
  check_alpha(op, alpha, compute);
  // A 0-dim CPU tensor counts as a number if the other is a CUDA tensor.
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

ScalarType check_vector_add(const char* op, const Tensor& a, const Scalar& b, const Scalar& alpha,
                            const Tensor& out) {
  TORCH_CHECK(!b.isComplex(), op, ": b must be a tensor or a real number, got a complex one");
  const ScalarType compute = promote(a, b);
  check_compute_dtype(op, "a + alpha * b", compute);
  check_alpha(op, alpha, compute);
  if (!out.defined()) return compute;
  check_result(op, "a", out, compute, a.device());
  check_memory(op, "a", out, "a", a);
  return compute;
}

// ---- meta

static Tensor add_meta(const Tensor& a, const Tensor& b, const Scalar& alpha) {
  check_vector_add("vector_add", a, b, alpha, Tensor());
  return at::add(a, b, alpha);
}

static Tensor add_number_meta(const Tensor& a, const Scalar& b, const Scalar& alpha) {
  check_vector_add("vector_add", a, b, alpha, Tensor());
  return at::add(a, b, alpha);
}

static void add_out_meta(const Tensor& a, const Tensor& b, const Scalar& alpha, Tensor& out) {
  check_vector_add("vector_add", a, b, alpha, out);
  at::add_outf(a, b, alpha, out);
}

static void add_inplace_meta(Tensor& a, const Tensor& b, const Scalar& alpha) {
  check_vector_add("vector_add_", a, b, alpha, a);
  a.add_(b, alpha);
}

static void add_number_inplace_meta(Tensor& a, const Scalar& b, const Scalar& alpha) {
  check_vector_add("vector_add_", a, b, alpha, a);
  a.add_(b, alpha);
}

// ---- CPU

static void add_number_cpu(ElementwiseLoop& loop, const Scalar& b, const Scalar& alpha) {
  run_cpu(loop, [b = to_scalar_arg(b), alpha = to_scalar_arg(alpha)](const cpu::Tile2d& tile) {
    cpu::vector_add_scalar(tile, b, /*scalar_is_b=*/true, alpha);
  });
}

static void add_cpu(ElementwiseLoop& loop, const Scalar& alpha) {
  run_cpu(loop, [alpha = to_scalar_arg(alpha)](const cpu::Tile2d& tile) {
    cpu::vector_add(tile, alpha);
  });
}

// ---- autograd: each gradient is summed over what was broadcast, in its argument's dtype

static Tensor reduce_like(const Tensor& grad, c10::SymIntArrayRef shape, ScalarType dtype) {
  return at::sum_to(grad, shape).to(dtype);
}

// Scaled first, as torch does; alpha = 1 costs nothing.
static Tensor times(const Tensor& t, const Scalar& alpha) {
  const bool is_one = !alpha.isSymbolic() && alpha.equal(1);
  return is_one ? t : scale(t, alpha);
}

using Shape = std::vector<c10::SymInt>;

struct VectorAddBackward : OpNode<VectorAddBackward, Shape, int64_t, Shape, int64_t, Scalar> {
  static constexpr const char* kName = "VectorAddBackward";
  static variable_list backward(const variable_list& grads, const Need& need, const Shape& a_shape,
                                int64_t a_dtype, const Shape& b_shape, int64_t b_dtype,
                                const Scalar& alpha) {
    variable_list result(2);
    if (need[0]) result[0] = reduce_like(grads[0], a_shape, static_cast<ScalarType>(a_dtype));
    if (need[1]) {
      result[1] = reduce_like(times(grads[0], alpha), b_shape, static_cast<ScalarType>(b_dtype));
    }
    return result;
  }
};

// What the derivative needs of the arguments, taken before an in-place op can change them.
struct AddGeometry {
  Shape a_shape, b_shape;
  int64_t a_dtype, b_dtype;

  AddGeometry(const Tensor& a, const Tensor& b)
      : a_shape(a.sym_sizes().vec()),
        b_shape(b.sym_sizes().vec()),
        a_dtype(static_cast<int64_t>(a.scalar_type())),
        b_dtype(static_cast<int64_t>(b.scalar_type())) {}
};

static Tensor add_tangent(const Tensor& a, const Tensor& b, const Scalar& alpha,
                          const Tensor& out) {
  if (a.defined() && b.defined()) return vector_add(a, b, alpha).to(out.scalar_type());
  const Tensor moved = a.defined() ? a : times(b, alpha);
  // A separate tensor, made from the tangent, which torch.func may have batched although the result
  // is not.
  return moved.expand_symint(out.sym_sizes()).to(out.scalar_type(), false, /*copy=*/true);
}

static Tensor add_autograd(c10::DispatchKeySet keys, const Tensor& a, const Tensor& b,
                           const Scalar& alpha) {
  auto node = VectorAddBackward::record(a, b);
  Tensor out = below_autograd(add_op(), keys, a, b, alpha);
  if (node) {
    set_history(out, node);
    const AddGeometry g(a, b);
    node->save(g.a_shape, g.a_dtype, g.b_shape, g.b_dtype, alpha);
  }
  if (isFwGradDefined(a) || isFwGradDefined(b)) {
    set_tangent(out, add_tangent(tangent(a), tangent(b), alpha, primal(out)));
  }
  return out;
}

static void add_inplace_autograd(c10::DispatchKeySet keys, Tensor& a, const Tensor& b,
                                 const Scalar& alpha) {
  torch::autograd::check_inplace(a, compute_requires_grad(a, b));
  auto node = VectorAddBackward::record(a, b);
  const Tensor a_tangent = tangent(a), b_tangent = tangent(b);
  below_autograd_inplace(add_inplace_op(), keys, a, b, alpha);
  if (node) {
    torch::autograd::rebase_history(a, node);
    const AddGeometry g(a, b);
    node->save(g.a_shape, g.a_dtype, g.b_shape, g.b_dtype, alpha);
  }
  if (a_tangent.defined() || b_tangent.defined()) {
    set_tangent(a, add_tangent(a_tangent, b_tangent, alpha, primal(a)), /*inplace=*/true);
  }
}

static void add_out_autograd(c10::DispatchKeySet keys, const Tensor& a, const Tensor& b,
                             const Scalar& alpha, Tensor& out) {
  refuse_autograd("vector_add", "out", a, b, out);
  below_autograd_inplace(add_out_op(), keys, a, b, alpha, out);
}

struct VectorAddScalarBackward : OpNode<VectorAddScalarBackward> {
  static constexpr const char* kName = "VectorAddScalarBackward";
  static variable_list backward(const variable_list& grads, const Need&) { return {grads[0]}; }
};

static Tensor add_number_autograd(c10::DispatchKeySet keys, const Tensor& a, const Scalar& b,
                                  const Scalar& alpha) {
  auto node = VectorAddScalarBackward::record(a);
  Tensor out = below_autograd(add_number_op(), keys, a, b, alpha);
  if (node) set_history(out, node);
  if (isFwGradDefined(a)) set_tangent(out, add_tangent(tangent(a), Tensor(), alpha, primal(out)));
  return out;
}

static void add_number_inplace_autograd(c10::DispatchKeySet keys, Tensor& a, const Scalar& b,
                                        const Scalar& alpha) {
  torch::autograd::check_inplace(a, compute_requires_grad(a));
  auto node = VectorAddScalarBackward::record(a);
  below_autograd_inplace(add_number_inplace_op(), keys, a, b, alpha);
  if (node) torch::autograd::rebase_history(a, node);
}

// ---- registration

TORCH_LIBRARY_IMPL(treadle, CPU, m) { register_vector_add<add_cpu, add_number_cpu>(m); }

TORCH_LIBRARY_IMPL(treadle, Meta, m) {
  m.impl("vector_add", add_meta);
  m.impl("vector_add.Scalar", add_number_meta);
  m.impl("vector_add.out", add_out_meta);
  m.impl("vector_add_", add_inplace_meta);
  m.impl("vector_add_.Scalar", add_number_inplace_meta);
}

TORCH_LIBRARY_IMPL(treadle, Autograd, m) {
  m.impl("vector_add", add_autograd);
  m.impl("vector_add.Scalar", add_number_autograd);
  m.impl("vector_add.out", add_out_autograd);
  m.impl("vector_add_", add_inplace_autograd);
  m.impl("vector_add_.Scalar", add_number_inplace_autograd);
}

TORCH_LIBRARY_IMPL(treadle, FuncTorchBatched, m) {
  for (auto name : {"vector_add", "vector_add.Scalar", "vector_add_", "vector_add_.Scalar"}) {
    m.impl(name, TREADLE_RULE(elementwise_batch_rule));
  }
}

}  // namespace treadle

// Derivatives of lltm_cell. Its Node calls the fused lltm_cell_backward. Derivatives of that op and
// all tangents are computed from the saved inputs with the ATen ops of layer/formulas.h.
#include "common/autograd.h"

#include "common/check.h"
#include "recurrent/layer/formulas.h"
#include "recurrent/lltm_cell/cell.h"
#include "treadle/ops.h"

namespace treadle {

// ---- dispatcher calls

static const auto& cell_op() {
  static const auto op = find_op<Tensors2(const Tensor&, const Tensor&, const OptionalTensor&,
                                          const Tensor&, const Tensor&)>("treadle::lltm_cell");
  return op;
}

static const auto& forward_op() {
  static const auto op =
      find_op<Tensors3(const Tensor&, const Tensor&, const OptionalTensor&, const Tensor&,
                       const Tensor&)>("treadle::lltm_cell_forward");
  return op;
}

static const auto& backward_op() {
  static const auto op =
      find_op<Tensors5(const OptionalTensor&, const OptionalTensor&, const Tensor&, const Tensor&,
                       const OptionalTensor&, const Tensor&, const Tensor&, const Tensor&,
                       const Tensor&, GradMask)>("treadle::lltm_cell_backward");
  return op;
}

Tensors2 lltm_cell(const Tensor& input, const Tensor& weights, const OptionalTensor& bias,
                   const Tensor& old_h, const Tensor& old_cell) {
  return cell_op().call(input, weights, bias, old_h, old_cell);
}

// ---- the step in ATen ops, in float or double

// Values, tangents or gradients of input, weights, bias, old_h and old_cell.
using CellTensors = std::array<Tensor, 5>;

struct CellComposition {
  ScalarType dtype;
  c10::SymInt hidden, features;
  Dual x, w, product, bias, old_c;  // product: the gates without bias
  Gates gates;

  CellComposition(const CellTensors& of, const CellTensors& tangents)
      : dtype(derivative_dtype(of[0])), hidden(of[3].sym_size(-1)), features(of[0].sym_size(-1)) {
    const auto dual = [&](size_t k) { return up({of[k], tangents[k]}); };
    const Dual input = dual(0), old_h = dual(3);
    const std::vector<Tensor> values = {old_h.value, input.value};
    x = {at::cat(values, -1), join({old_h.tangent, input.tangent}, values)};
    w = dual(1);
    bias = dual(2);
    old_c = dual(4);
    product = matrix_product(x, transposed(w));
    // A bias [3H] or [1, 3H], with or without a leading N, is broadcast over B.
    const Dual row = bias.map([&](const Tensor& t) {
      return t.defined() && t.dim() < of[0].dim() ? t.unsqueeze(-2) : t;
    });
    gates = gate_parts(add_bias(product, row), cell_info(CellKind::kLltm).gates, hidden);
  }

  CellStates forward() const { return kLltm.forward(gates, old_c); }

  // The tangents of the gradients, in the order of the arguments.
  CellTensors backward(const Dual& grad_h, const Dual& grad_c) const {
    const CellGrads grads = kLltm.backward(gates, old_c, up(grad_h), up(grad_c));
    const Dual joined = join_gates(grads.gates, gates);
    const Tensor of_x = tangent_of_product(joined, w);
    const Tensor of_bias = joined.tangent.defined() && bias.value.defined()
                               ? joined.tangent.sum(-2).reshape_symint(bias.value.sym_sizes())
                               : Tensor();
    return {columns(of_x, hidden, features), tangent_of_product(transposed(joined), x), of_bias,
            columns(of_x, 0, hidden), grads.old_c.tangent};
  }

 private:
  Dual up(const Dual& of) const {
    return of.map([&](const Tensor& t) { return cast(t, dtype); });
  }
};

// ---- the backward op's derivatives

static Tensors5 call_backward(const Tensor& grad_h, const Tensor& grad_cell, const Tensor& input,
                              const Tensor& weights, const Tensor& bias, const Tensor& old_h,
                              const Tensor& old_cell, const Tensor& new_cell, const Tensor& gates,
                              GradMask mask) {
  return backward_op().call(optional(grad_h), optional(grad_cell), input, weights, optional(bias),
                            old_h, old_cell, new_cell, gates, mask);
}

// Inputs: grad_h, grad_cell, input, weights, bias, old_h, old_cell. new_cell and gates are
// functions of the inputs, so their gradients are included in those of the inputs.
struct LltmCellBackwardBackward
    : OpNode<LltmCellBackwardBackward, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> {
  static constexpr const char* kName = "LltmCellBackwardBackward";

  static variable_list backward(const variable_list& v, const Need& need, const Tensor& grad_h,
                                const Tensor& grad_cell, const Tensor& input, const Tensor& weights,
                                const Tensor& bias, const Tensor& old_h, const Tensor& old_cell) {
    const CellTensors of{input, weights, bias, old_h, old_cell};
    const CellComposition step(of, {v[0], v[1], v[2], v[3], v[4]});
    const CellStates moved = step.forward();
    const CellTensors found = step.backward({grad_h}, {grad_cell});
    variable_list result(7);
    if (need[0]) result[0] = cast(moved.h.tangent, input.scalar_type());
    if (need[1]) result[1] = cast(moved.c.tangent, old_cell.scalar_type());
    for (size_t k = 0; k < found.size(); ++k) {
      if (need[k + 2]) result[k + 2] = cast(found[k], of[k].scalar_type());
    }
    return result;
  }
};

static CellTensors each(const CellTensors& of, Tensor (*f)(const Tensor&)) {
  return {f(of[0]), f(of[1]), f(of[2]), f(of[3]), f(of[4])};
}

static void set_backward_tangents(const Tensors5& out, const Tensor& grad_h,
                                  const Tensor& grad_cell, const CellTensors& of) {
  const CellComposition step(each(of, primal), each(of, tangent));
  const CellTensors found =
      step.backward({primal(grad_h), tangent(grad_h)}, {primal(grad_cell), tangent(grad_cell)});
  const auto set = [](const Tensor& t, const Tensor& value) {
    if (t.defined() && value.defined()) set_tangent(t, value.to(t.scalar_type()).contiguous());
  };
  set(std::get<0>(out), found[0]);
  set(std::get<1>(out), found[1]);
  set(std::get<2>(out), found[2]);
  set(std::get<3>(out), found[3]);
  set(std::get<4>(out), found[4]);
}

static Tensors5 lltm_cell_backward_autograd(c10::DispatchKeySet keys, const OptionalTensor& grad_h,
                                            const OptionalTensor& grad_cell, const Tensor& input,
                                            const Tensor& weights, const OptionalTensor& bias,
                                            const Tensor& old_h, const Tensor& old_cell,
                                            const Tensor& new_cell, const Tensor& gates,
                                            GradMask mask) {
  const Tensor gh = value_or_undefined(grad_h), gc = value_or_undefined(grad_cell);
  const Tensor b = value_or_undefined(bias);
  auto node = LltmCellBackwardBackward::record(gh, gc, input, weights, b, old_h, old_cell);
  auto out = below_autograd(backward_op(), keys, grad_h, grad_cell, input, weights, bias, old_h,
                            old_cell, new_cell, gates, mask);
  if (node) {
    auto& [r0, r1, r2, r3, r4] = out;
    set_history(variable_list{r0, r1, r2, r3, r4}, node);
    node->save(gh, gc, input, weights, b, old_h, old_cell);
  }
  if (has_tangent(gh, gc, input, weights, b, old_h, old_cell)) {
    set_backward_tangents(out, gh, gc, {input, weights, b, old_h, old_cell});
  }
  return out;
}

// ---- the cell's derivatives

struct LltmCellBackward
    : OpNode<LltmCellBackward, Tensor, Tensor, Tensor, Tensor, Tensor, Output, Tensor> {
  static constexpr const char* kName = "LltmCellBackward";

  static variable_list backward(const variable_list& grads, const Need& need, const Tensor& input,
                                const Tensor& weights, const Tensor& bias, const Tensor& old_h,
                                const Tensor& old_cell, const Tensor& new_cell,
                                const Tensor& gates) {
    const GradMask mask{need[0], need[1], need[2], need[3], need[4]};
    auto [r0, r1, r2, r3, r4] = call_backward(grads[0], grads[1], input, weights, bias, old_h,
                                              old_cell, new_cell, gates, mask);
    return {r0, r1, r2, r3, r4};
  }
};

// The tangents of new_h, new_cell and gates (which do not include the bias).
static void set_forward_tangents(const Tensors3& out, const CellTensors& of) {
  const CellComposition step(each(of, primal), each(of, tangent));
  const CellStates moved = step.forward();
  const auto set = [](const Tensor& t, const Tensor& value) {
    set_tangent(t, value.defined() ? value.to(t.scalar_type()) : at::zeros_like(primal(t)));
  };
  set(std::get<0>(out), moved.h.tangent);
  set(std::get<1>(out), moved.c.tangent);
  set(std::get<2>(out), step.product.tangent);
}

// lltm_cell calls this. So outer levels of torch.func see the op lltm_cell_forward, for which this
// file registers all derivatives. In reverse mode, no gradient with respect to gates is computed:
// the derivatives of the backward op with respect to the inputs include it.
static Tensors3 lltm_cell_forward_autograd(c10::DispatchKeySet keys, const Tensor& input,
                                           const Tensor& weights, const OptionalTensor& bias,
                                           const Tensor& old_h, const Tensor& old_cell) {
  const Tensor b = value_or_undefined(bias);
  auto node = LltmCellBackward::record(input, weights, b, old_h, old_cell);
  auto out = below_autograd(forward_op(), keys, input, weights, bias, old_h, old_cell);
  const auto& [new_h, new_cell, gates] = out;
  if (node) set_history({new_h, new_cell}, node);
  if (has_tangent(input, weights, b, old_h, old_cell)) {
    set_forward_tangents(out, {input, weights, b, old_h, old_cell});
  }
  if (node) node->save(input, weights, b, old_h, old_cell, new_cell, gates);
  return out;
}

static Tensors2 lltm_cell_autograd(c10::DispatchKeySet keys, const Tensor& input,
                                   const Tensor& weights, const OptionalTensor& bias,
                                   const Tensor& old_h, const Tensor& old_cell) {
  auto [new_h, new_cell, gates] =
      lltm_cell_forward_autograd(keys, input, weights, bias, old_h, old_cell);
  return {new_h, new_cell};
}

TORCH_LIBRARY_IMPL(treadle, Autograd, m) {
  m.impl("lltm_cell", lltm_cell_autograd);
  m.impl("lltm_cell_forward", lltm_cell_forward_autograd);
  m.impl("lltm_cell_backward", lltm_cell_backward_autograd);
}

}  // namespace treadle

// The derivatives of lltm_cell: a Node that calls the fused lltm_cell_backward. The derivatives of
// that op, and tangents, are composed of ATen ops from the saved inputs: recurrent/formulas.h.
#include "common/autograd.h"

#include "recurrent/formulas.h"
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

// ---- the backward op's derivatives

static Tensors5 call_backward(const Tensor& grad_h, const Tensor& grad_cell, const Tensor& input,
                              const Tensor& weights, const Tensor& bias, const Tensor& old_h,
                              const Tensor& old_cell, const Tensor& new_cell, const Tensor& gates,
                              GradMask mask) {
  return backward_op().call(optional(grad_h), optional(grad_cell), input, weights, optional(bias),
                            old_h, old_cell, new_cell, gates, mask);
}

// Inputs: grad_h, grad_cell, input, weights, bias, old_h, old_cell. new_cell and gates are
// functions of the inputs, whose gradients include what flows through them.
struct LltmCellBackwardBackward
    : OpNode<LltmCellBackwardBackward, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> {
  static constexpr const char* kName = "LltmCellBackwardBackward";

  static variable_list backward(const variable_list& v, const Need& need, const Tensor& grad_h,
                                const Tensor& grad_cell, const Tensor& input, const Tensor& weights,
                                const Tensor& bias, const Tensor& old_h, const Tensor& old_cell) {
    const CellValues value(input, weights, optional(bias), old_h, old_cell);
    const auto up = [&](const Tensor& t) { return cast(t, value.dtype); };
    const CellGrads grads(value, up(grad_h), up(grad_cell));
    const Tensor vx = join(up(v[3]), up(v[0]), up(old_h), up(input)), vw = up(v[1]);
    CellTangents moved(value, value.gates_tangent(vx, vw, up(v[2]), input), up(v[4]));
    moved.set_grads(value, grads, up(grad_h), Tensor(), Tensor());

    const Tensor gx =
        plus(matrix_product(moved.grad_gates, value.w), matrix_product(grads.gates, vw));
    const Tensor gw = plus(matrix_product(transposed(moved.grad_gates), value.x),
                           matrix_product(transposed(grads.gates), vx));
    variable_list result(7);
    if (need[0]) result[0] = cast(moved.h, input.scalar_type());
    if (need[1]) result[1] = cast(moved.c, old_cell.scalar_type());
    if (need[2]) {
      result[2] = cast(columns(gx, value.hidden, value.features), input.scalar_type());
    }
    if (need[3]) result[3] = cast(gw, weights.scalar_type());
    if (need[4]) result[4] = cast(sum_rows(moved.grad_gates, bias), input.scalar_type());
    if (need[5]) result[5] = cast(columns(gx, 0, value.hidden), input.scalar_type());
    if (need[6]) result[6] = cast(moved.grad_c, old_cell.scalar_type());
    return result;
  }
};

static void set_backward_tangents(const Tensors5& out, const Tensor& grad_h,
                                  const Tensor& grad_cell, const Tensor& input,
                                  const Tensor& weights, const Tensor& bias, const Tensor& old_h,
                                  const Tensor& old_cell) {
  const CellValues value(primal(input), primal(weights), optional(primal(bias)), primal(old_h),
                         primal(old_cell));
  const auto up = [&](const Tensor& t) { return cast(t, value.dtype); };
  const CellGrads grads(value, up(primal(grad_h)), up(primal(grad_cell)));
  const Tensor tx =
      join(up(tangent(old_h)), up(tangent(input)), up(primal(old_h)), up(primal(input)));
  const Tensor tw = up(tangent(weights));
  CellTangents moved(value, value.gates_tangent(tx, tw, up(tangent(bias)), input),
                     up(tangent(old_cell)));
  moved.set_grads(value, grads, up(primal(grad_h)), up(tangent(grad_h)), up(tangent(grad_cell)));
  const Tensor gx =
      plus(matrix_product(moved.grad_gates, value.w), matrix_product(grads.gates, tw));
  const Tensor gw = plus(matrix_product(transposed(moved.grad_gates), value.x),
                         matrix_product(transposed(grads.gates), tx));
  const auto set = [](const Tensor& t, const Tensor& value) {
    if (t.defined() && value.defined()) set_tangent(t, value.to(t.scalar_type()).contiguous());
  };
  set(std::get<0>(out), columns(gx, value.hidden, value.features));
  set(std::get<1>(out), gw);
  set(std::get<2>(out), sum_rows(moved.grad_gates, bias));
  set(std::get<3>(out), columns(gx, 0, value.hidden));
  set(std::get<4>(out), moved.grad_c);
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
    set_backward_tangents(out, gh, gc, input, weights, b, old_h, old_cell);
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

// The tangents of new_h, new_cell and gates (without the bias, as they are).
static void set_forward_tangents(const Tensors3& out, const Tensor& input, const Tensor& weights,
                                 const Tensor& bias, const Tensor& old_h, const Tensor& old_cell) {
  const CellValues value(primal(input), primal(weights), optional(primal(bias)), primal(old_h),
                         primal(old_cell));
  const auto up = [&](const Tensor& t) { return cast(t, value.dtype); };
  const Tensor tx =
      join(up(tangent(old_h)), up(tangent(input)), up(primal(old_h)), up(primal(input)));
  const Tensor tw = up(tangent(weights));
  const CellTangents moved(value, value.gates_tangent(tx, tw, up(tangent(bias)), input),
                           up(tangent(old_cell)));
  const auto set = [](const Tensor& t, const Tensor& value) {
    set_tangent(t, value.defined() ? value.to(t.scalar_type()) : at::zeros_like(primal(t)));
  };
  set(std::get<0>(out), moved.h);
  set(std::get<1>(out), moved.c);
  set(std::get<2>(out), value.gates_tangent(tx, tw, Tensor(), input));
}

// What lltm_cell calls, so that outer levels of torch.func see one op with all its derivatives.
// In reverse mode gates have no gradient: the backward op counts them in the inputs.
static Tensors3 lltm_cell_forward_autograd(c10::DispatchKeySet keys, const Tensor& input,
                                           const Tensor& weights, const OptionalTensor& bias,
                                           const Tensor& old_h, const Tensor& old_cell) {
  const Tensor b = value_or_undefined(bias);
  auto node = LltmCellBackward::record(input, weights, b, old_h, old_cell);
  auto out = below_autograd(forward_op(), keys, input, weights, bias, old_h, old_cell);
  const auto& [new_h, new_cell, gates] = out;
  if (node) set_history({new_h, new_cell}, node);
  if (has_tangent(input, weights, b, old_h, old_cell)) {
    set_forward_tangents(out, input, weights, b, old_h, old_cell);
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

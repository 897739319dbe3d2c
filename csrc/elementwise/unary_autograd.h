// What the ops of unary.h share above their kernels: dispatcher calls, Meta, Nodes and tangents.
// With f the function of Op, `<op>_backward(grad, x)` is grad * f'(x).
#pragma once

#include "common/autograd.h"
#include "common/rules.h"
#include "common/vmap.h"
#include "elementwise/unary.h"

namespace treadle {

// ---- dispatcher calls

inline std::string qualified(const char* name) { return std::string("treadle::") + name; }

template <class Op>
const auto& unary_op() {
  static const auto op = find_op<Tensor(const Tensor&)>(qualified(Op::kName).c_str());
  return op;
}

template <class Op>
const auto& unary_out_op() {
  static const auto op = find_op<void(const Tensor&, Tensor&)>(qualified(Op::kName).c_str(), "out");
  return op;
}

template <class Op>
const auto& unary_inplace_op() {
  static const auto op = find_op<void(Tensor&)>(qualified(Op::kInplaceName).c_str());
  return op;
}

template <class Op>
const auto& unary_backward_op() {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&)>(qualified(Op::kBackwardName).c_str());
  return op;
}

template <class Op>
Tensor call_backward(const Tensor& grad, const Tensor& x) {
  return unary_backward_op<Op>().call(grad, x);
}

// ---- meta: dtype, shape and strides are those of any op of torch with the same promotion

template <class Op>
Tensor unary_meta(const Tensor& x) {
  check_unary(Op::kName, Op::kIntegers, x, Tensor());
  return Op::kIntegers ? at::neg(x) : at::sin(x);
}

template <class Op>
void unary_out_meta(const Tensor& x, Tensor& out) {
  check_unary(Op::kName, Op::kIntegers, x, out);
  Op::kIntegers ? at::neg_outf(x, out) : at::sin_outf(x, out);
}

template <class Op>
void unary_inplace_meta(Tensor& x) {
  check_unary(Op::kInplaceName, Op::kIntegers, x, x);
  Op::kIntegers ? x.neg_() : x.sin_();
}

template <class Op>
Tensor unary_backward_meta(const Tensor& grad, const Tensor& x) {
  check_unary_backward(Op::kBackwardName, grad, x);
  return at::mul(grad, x);
}

// ---- autograd

template <class Op>
struct UnaryBackward : OpNode<UnaryBackward<Op>, Tensor> {
  static constexpr const char* kName = Op::kNode;
  static variable_list backward(const variable_list& grads, const Need&, const Tensor& x) {
    return {call_backward<Op>(grads[0], x)};
  }
};

// out = grad * f'(x) is linear in grad.
template <class Op>
struct UnaryBackwardBackward : OpNode<UnaryBackwardBackward<Op>, Tensor, Tensor> {
  static constexpr const char* kName = Op::kBackwardNode;
  static variable_list backward(const variable_list& grads, const Need& need, const Tensor& grad,
                                const Tensor& x) {
    variable_list result(2);
    if (need[0]) result[0] = at::sum_to(call_backward<Op>(grads[0], x), grad.sym_sizes());
    if (need[1]) result[1] = at::sum_to(Op::times_second(grads[0] * grad, x), x.sym_sizes());
    return result;
  }
};

template <class Op>
Tensor unary_autograd(c10::DispatchKeySet keys, const Tensor& x) {
  auto node = UnaryBackward<Op>::record(x);
  Tensor out = below_autograd(unary_op<Op>(), keys, x);
  if (node) {
    set_history(out, node);
    node->save(x);
  }
  if (isFwGradDefined(x)) set_tangent(out, call_backward<Op>(tangent(x), primal(x)));
  return out;
}

template <class Op>
void unary_inplace_autograd(c10::DispatchKeySet keys, Tensor& x) {
  torch::autograd::check_inplace(x, compute_requires_grad(x));
  auto node = UnaryBackward<Op>::record(x);
  const Tensor x_tangent = tangent(x);
  // The derivative is at the old value, which is about to be overwritten.
  const Tensor old = node || x_tangent.defined() ? x.clone() : Tensor();
  if (node) node->save(old);
  below_autograd_inplace(unary_inplace_op<Op>(), keys, x);
  if (node) torch::autograd::rebase_history(x, node);
  if (x_tangent.defined()) {
    set_tangent(x, call_backward<Op>(x_tangent, primal(old)), /*inplace=*/true);
  }
}

template <class Op>
void unary_out_autograd(c10::DispatchKeySet keys, const Tensor& x, Tensor& out) {
  refuse_autograd(Op::kName, "out", x, out);
  below_autograd_inplace(unary_out_op<Op>(), keys, x, out);
}

template <class Op>
Tensor unary_backward_autograd(c10::DispatchKeySet keys, const Tensor& grad, const Tensor& x) {
  auto node = UnaryBackwardBackward<Op>::record(grad, x);
  Tensor out = below_autograd(unary_backward_op<Op>(), keys, grad, x);
  if (node) {
    set_history(out, node);
    node->save(grad, x);
  }
  const Tensor grad_tangent = tangent(grad), x_tangent = tangent(x);
  Tensor moved;
  if (grad_tangent.defined()) moved = call_backward<Op>(grad_tangent, primal(x));
  if (x_tangent.defined()) {
    moved = plus(moved, Op::times_second(x_tangent * primal(grad), primal(x)));
  }
  set_tangent(out, moved);
  return out;
}

// ---- registration

template <class Op>
void register_unary_meta(torch::Library& m) {
  m.impl(Op::kName, unary_meta<Op>);
  m.impl(out_name<Op>().c_str(), unary_out_meta<Op>);
  m.impl(Op::kInplaceName, unary_inplace_meta<Op>);
  m.impl(Op::kBackwardName, unary_backward_meta<Op>);
}

template <class Op>
void register_unary_autograd(torch::Library& m) {
  m.impl(Op::kName, unary_autograd<Op>);
  m.impl(out_name<Op>().c_str(), unary_out_autograd<Op>);
  m.impl(Op::kInplaceName, unary_inplace_autograd<Op>);
  m.impl(Op::kBackwardName, unary_backward_autograd<Op>);
}

template <class Op>
void register_unary_vmap(torch::Library& m) {
  for (const char* name : {Op::kName, Op::kInplaceName, Op::kBackwardName}) {
    m.impl(name, TREADLE_RULE(elementwise_batch_rule));
  }
}

}  // namespace treadle

// What elementwise ops of one tensor share: check, CPU and CUDA kernels, and their registration. An
// op is a struct of names, kIntegers and a second derivative, such as SineOp in trig.h. kIntegers:
// integers give integers; otherwise the default float dtype. Autograd, Meta, vmap:
// unary_autograd.h.
#pragma once

#include <torch/library.h>

#include <string>

#include "elementwise/loop.h"

namespace treadle {

// A backend brings one loop for the op, out = f(x), and one for its backward, grad * f'(x).
using UnaryRun = void (*)(ElementwiseLoop& loop);

template <void (*kernel)(const cpu::Tile2d&)>
void unary_cpu(ElementwiseLoop& loop) {
  run_cpu(loop, [](const cpu::Tile2d& tile) { kernel(tile); });
}

// The dtype of the result. `out` is undefined, or the tensor that is written.
ScalarType check_unary(const char* op, bool integers, const Tensor& x, const Tensor& out);
ScalarType check_unary_backward(const char* op, const Tensor& grad, const Tensor& x);

template <class Op, UnaryRun run>
Tensor unary_kernel(const Tensor& x) {
  const ScalarType compute = check_unary(Op::kName, Op::kIntegers, x, Tensor());
  ElementwiseLoop loop(Op::kName, Tensor(), x, compute);
  run(loop);
  return loop.output;
}

template <class Op, UnaryRun run>
void unary_out_kernel(const Tensor& x, Tensor& out) {
  const ScalarType compute = check_unary(Op::kName, Op::kIntegers, x, out);
  ElementwiseLoop loop(Op::kName, out, x, compute);
  run(loop);
}

template <class Op, UnaryRun run>
void unary_inplace_kernel(Tensor& x) {
  const ScalarType compute = check_unary(Op::kInplaceName, Op::kIntegers, x, x);
  ElementwiseLoop loop(Op::kInplaceName, x, x, compute);
  run(loop);
}

template <class Op, UnaryRun run>
Tensor unary_backward_kernel(const Tensor& grad, const Tensor& x) {
  const ScalarType compute = check_unary_backward(Op::kBackwardName, grad, x);
  ElementwiseLoop loop(Op::kBackwardName, Tensor(), grad, x, compute);
  run(loop);
  return loop.output;
}

template <class Op>
std::string out_name() {
  return std::string(Op::kName) + ".out";
}

template <class Op, UnaryRun forward, UnaryRun backward>
void register_unary(torch::Library& m) {
  m.impl(Op::kName, unary_kernel<Op, forward>);
  m.impl(out_name<Op>().c_str(), unary_out_kernel<Op, forward>);
  m.impl(Op::kInplaceName, unary_inplace_kernel<Op, forward>);
  m.impl(Op::kBackwardName, unary_backward_kernel<Op, backward>);
}

}  // namespace treadle

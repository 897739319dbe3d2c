// sine: out = sin(x), backward grad * cos(x). cosine: out = cos(x), backward -grad * sin(x). x [*];
// integers give the default float dtype. Twins: cuda/trig.cpp, cpu/{sine,cosine}.cpp,
// kernels/elementwise/{sine,cosine}.cu.
#include "elementwise/trig.h"

#include "elementwise/unary_autograd.h"
#include "treadle/ops.h"

namespace treadle {

// ---- C++ interface

Tensor sine(const Tensor& x) { return unary_op<SineOp>().call(x); }

Tensor& sine_out(Tensor& out, const Tensor& x) {
  unary_out_op<SineOp>().call(x, out);
  return out;
}

Tensor& sine_(Tensor& x) {
  unary_inplace_op<SineOp>().call(x);
  return x;
}

Tensor sine_backward(const Tensor& grad, const Tensor& x) { return call_backward<SineOp>(grad, x); }

Tensor cosine(const Tensor& x) { return unary_op<CosineOp>().call(x); }

Tensor& cosine_out(Tensor& out, const Tensor& x) {
  unary_out_op<CosineOp>().call(x, out);
  return out;
}

Tensor& cosine_(Tensor& x) {
  unary_inplace_op<CosineOp>().call(x);
  return x;
}

Tensor cosine_backward(const Tensor& grad, const Tensor& x) {
  return call_backward<CosineOp>(grad, x);
}

// ---- second derivatives

Tensor SineOp::times_second(const Tensor& t, const Tensor& x) { return cosine_backward(t, x); }

Tensor CosineOp::times_second(const Tensor& t, const Tensor& x) { return -sine_backward(t, x); }

// ---- registration

TORCH_LIBRARY_IMPL(treadle, CPU, m) {
  register_unary<SineOp, unary_cpu<cpu::sine>, unary_cpu<cpu::sine_backward>>(m);
  register_unary<CosineOp, unary_cpu<cpu::cosine>, unary_cpu<cpu::cosine_backward>>(m);
}

TORCH_LIBRARY_IMPL(treadle, Meta, m) {
  register_unary_meta<SineOp>(m);
  register_unary_meta<CosineOp>(m);
}

TORCH_LIBRARY_IMPL(treadle, Autograd, m) {
  register_unary_autograd<SineOp>(m);
  register_unary_autograd<CosineOp>(m);
}

TORCH_LIBRARY_IMPL(treadle, FuncTorchBatched, m) {
  register_unary_vmap<SineOp>(m);
  register_unary_vmap<CosineOp>(m);
}

}  // namespace treadle

// cosine: out = cos(x); cosine_backward: -grad * sin(x). x [*]; integers give the default float
// dtype. Twins: cuda/cosine.cpp, cpu/cosine.cpp, kernels/cosine.cu.
#include "cosine.h"

#include "treadle/ops.h"
#include "unary_autograd.h"

namespace treadle {

// ---- dispatcher call

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

// ---- meta

Tensor CosineOp::torch_twin(const Tensor& x) { return at::cos(x); }

void CosineOp::torch_twin_out(const Tensor& x, Tensor& out) { at::cos_outf(x, out); }

void CosineOp::torch_twin_inplace(Tensor& x) { x.cos_(); }

// ---- CPU

static void cosine_cpu(ElementwiseLoop& loop) {
  run_cpu(loop, [](const cpu::Piece& piece) { cpu::cosine(piece); });
}

static void cosine_backward_cpu(ElementwiseLoop& loop) {
  run_cpu(loop, [](const cpu::Piece& piece) { cpu::cosine_backward(piece); });
}

// ---- autograd

Tensor CosineOp::times_second(const Tensor& t, const Tensor& x) { return -sine_backward(t, x); }

// ---- registration

TORCH_LIBRARY_IMPL(treadle, CPU, m) {
  register_unary<CosineOp, cosine_cpu, cosine_backward_cpu>(m);
}

TORCH_LIBRARY_IMPL(treadle, Meta, m) { register_unary_meta<CosineOp>(m); }

TORCH_LIBRARY_IMPL(treadle, Autograd, m) { register_unary_autograd<CosineOp>(m); }

TORCH_LIBRARY_IMPL(treadle, FuncTorchBatched, m) { register_unary_vmap<CosineOp>(m); }

}  // namespace treadle

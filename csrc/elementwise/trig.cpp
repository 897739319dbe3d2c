// sine: out = sin(x); sine_backward: grad * cos(x). x [*]; integers give the default float dtype.
// Twins: cuda/sine.cpp, cpu/sine.cpp, kernels/sine.cu.
#include "sine.h"

#include "treadle/ops.h"
#include "unary_autograd.h"

namespace treadle {

// ---- dispatcher call

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

// ---- meta

Tensor SineOp::torch_twin(const Tensor& x) { return at::sin(x); }

void SineOp::torch_twin_out(const Tensor& x, Tensor& out) { at::sin_outf(x, out); }

void SineOp::torch_twin_inplace(Tensor& x) { x.sin_(); }

// ---- CPU

static void sine_cpu(ElementwiseLoop& loop) {
  run_cpu(loop, [](const cpu::Piece& piece) { cpu::sine(piece); });
}

static void sine_backward_cpu(ElementwiseLoop& loop) {
  run_cpu(loop, [](const cpu::Piece& piece) { cpu::sine_backward(piece); });
}

// ---- autograd

Tensor SineOp::times_second(const Tensor& t, const Tensor& x) { return cosine_backward(t, x); }

// ---- registration

TORCH_LIBRARY_IMPL(treadle, CPU, m) { register_unary<SineOp, sine_cpu, sine_backward_cpu>(m); }

TORCH_LIBRARY_IMPL(treadle, Meta, m) { register_unary_meta<SineOp>(m); }

TORCH_LIBRARY_IMPL(treadle, Autograd, m) { register_unary_autograd<SineOp>(m); }

TORCH_LIBRARY_IMPL(treadle, FuncTorchBatched, m) { register_unary_vmap<SineOp>(m); }

}  // namespace treadle

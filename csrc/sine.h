// sine: what its CPU and CUDA kernels share. Each backend brings a loop for sine and one for
// sine_backward.
#pragma once

#include <torch/library.h>

#include "elementwise.h"

namespace treadle {

using SineRun = void (*)(ElementwiseLoop& loop);

// The dtype of the result. `out` is undefined, or the tensor that is written.
ScalarType check_sine(const char* op, const Tensor& x, const Tensor& out);
ScalarType check_sine_backward(const Tensor& grad, const Tensor& x);

template <SineRun run>
Tensor sine_kernel(const Tensor& x) {
  const ScalarType compute = check_sine("sine", x, Tensor());
  ElementwiseLoop loop("sine", Tensor(), x, compute);
  run(loop);
  return loop.output;
}

template <SineRun run>
void sine_out_kernel(const Tensor& x, Tensor& out) {
  const ScalarType compute = check_sine("sine", x, out);
  ElementwiseLoop loop("sine", out, x, compute);
  run(loop);
}

template <SineRun run>
void sine_inplace_kernel(Tensor& x) {
  const ScalarType compute = check_sine("sine_", x, x);
  ElementwiseLoop loop("sine_", x, x, compute);
  run(loop);
}

template <SineRun run>
Tensor sine_backward_kernel(const Tensor& grad, const Tensor& x) {
  const ScalarType compute = check_sine_backward(grad, x);
  ElementwiseLoop loop("sine_backward", Tensor(), grad, x, compute);
  run(loop);
  return loop.output;
}

template <SineRun forward, SineRun backward>
void register_sine(torch::Library& m) {
  m.impl("sine", sine_kernel<forward>);
  m.impl("sine.out", sine_out_kernel<forward>);
  m.impl("sine_", sine_inplace_kernel<forward>);
  m.impl("sine_backward", sine_backward_kernel<backward>);
}

}  // namespace treadle

// scale: what its CPU and CUDA kernels share. Each backend brings a loop, `run`.
#pragma once

#include <torch/library.h>

#include "elementwise/loop.h"

namespace treadle {

using ScaleRun = void (*)(ElementwiseLoop& loop, const Scalar& factor);

// The dtype of the result. `out` is undefined, or the tensor that is written.
ScalarType check_scale(const char* op, const Tensor& x, const Scalar& factor, const Tensor& out);

template <ScaleRun run>
Tensor scale_kernel(const Tensor& x, const Scalar& factor) {
  const ScalarType compute = check_scale("scale", x, factor, Tensor());
  ElementwiseLoop loop("scale", Tensor(), x, compute);
  run(loop, factor);
  return loop.output;
}

template <ScaleRun run>
void scale_out_kernel(const Tensor& x, const Scalar& factor, Tensor& out) {
  const ScalarType compute = check_scale("scale", x, factor, out);
  ElementwiseLoop loop("scale", out, x, compute);
  run(loop, factor);
}

template <ScaleRun run>
void scale_inplace_kernel(Tensor& x, const Scalar& factor) {
  const ScalarType compute = check_scale("scale_", x, factor, x);
  ElementwiseLoop loop("scale_", x, x, compute);
  run(loop, factor);
}

template <ScaleRun run>
void register_scale(torch::Library& m) {
  m.impl("scale", scale_kernel<run>);
  m.impl("scale.out", scale_out_kernel<run>);
  m.impl("scale_", scale_inplace_kernel<run>);
}

}  // namespace treadle

// sine and sine_backward on CUDA. Kernels: kernels/sine.cu.
#include "kernels/sine.h"

#include "cuda/elementwise.h"
#include "sine.h"

namespace treadle {

static void sine_cuda(at::TensorIteratorBase& iter, ScalarType compute) {
  run_cuda("sine", iter, compute, launch_sine);
}

static void sine_backward_cuda(at::TensorIteratorBase& iter, ScalarType compute) {
  run_cuda("sine_backward", iter, compute, launch_sine_backward);
}

TORCH_LIBRARY_IMPL(treadle, CUDA, m) { register_sine<sine_cuda, sine_backward_cuda>(m); }

}  // namespace treadle

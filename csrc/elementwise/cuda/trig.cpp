// sine and cosine on CUDA. Kernels: kernels/elementwise/{sine,cosine}.cu.
#include "elementwise/trig.h"

#include "elementwise/cuda/loop.h"
#include "elementwise/unary.h"
#include "kernels/elementwise/launchers.h"

namespace treadle {

TORCH_LIBRARY_IMPL(treadle, CUDA, m) {
  register_unary<SineOp, unary_cuda<launch_sine>, unary_cuda<launch_sine_backward>>(m);
  register_unary<CosineOp, unary_cuda<launch_cosine>, unary_cuda<launch_cosine_backward>>(m);
}

}  // namespace treadle

// cosine and cosine_backward on CUDA. Kernels: kernels/cosine.cu.
#include "kernels/cosine.h"

#include "cosine.h"
#include "cuda/run.h"
#include "unary.h"

namespace treadle {

static void cosine_cuda(ElementwiseLoop& loop) { run_cuda(loop, launch_cosine); }

static void cosine_backward_cuda(ElementwiseLoop& loop) { run_cuda(loop, launch_cosine_backward); }

TORCH_LIBRARY_IMPL(treadle, CUDA, m) {
  register_unary<CosineOp, cosine_cuda, cosine_backward_cuda>(m);
}

}  // namespace treadle

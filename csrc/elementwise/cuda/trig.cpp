// sine and sine_backward on CUDA. Kernels: kernels/sine.cu.
#include "kernels/sine.h"

#include "cuda/run.h"
#include "sine.h"
#include "unary.h"

namespace treadle {

static void sine_cuda(ElementwiseLoop& loop) { run_cuda(loop, launch_sine); }

static void sine_backward_cuda(ElementwiseLoop& loop) { run_cuda(loop, launch_sine_backward); }

TORCH_LIBRARY_IMPL(treadle, CUDA, m) { register_unary<SineOp, sine_cuda, sine_backward_cuda>(m); }

}  // namespace treadle

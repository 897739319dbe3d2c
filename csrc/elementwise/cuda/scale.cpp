// scale on CUDA. Kernel: kernels/elementwise/scale.cu.
#include "elementwise/scale.h"

#include "elementwise/cuda/loop.h"
#include "kernels/elementwise/launchers.h"

namespace treadle {

static void scale_cuda(ElementwiseLoop& loop, const Scalar& factor) {
  run_cuda(loop,
           [factor = to_scalar_arg(factor)](const ElementwiseArgs& args, cudaStream_t stream) {
             return launch_scale(args, factor, stream);
           });
}

TORCH_LIBRARY_IMPL(treadle, CUDA, m) { register_scale<scale_cuda>(m); }

}  // namespace treadle

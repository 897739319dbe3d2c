// scale on CUDA. Kernel: kernels/scale.cu.
#include "kernels/scale.h"

#include "cuda/run.h"
#include "scale.h"

namespace treadle {

static void scale_cuda(ElementwiseLoop& loop, const Scalar& factor) {
  run_cuda(loop, [factor = to_number(factor)](const ElementwiseArgs& args, cudaStream_t stream) {
    return launch_scale(args, factor, stream);
  });
}

TORCH_LIBRARY_IMPL(treadle, CUDA, m) { register_scale<scale_cuda>(m); }

}  // namespace treadle

// scale on CUDA. Kernel: kernels/scale.cu.
#include "kernels/scale.h"

#include "cuda/elementwise.h"
#include "scale.h"

namespace treadle {

static void scale_cuda(at::TensorIteratorBase& iter, ScalarType compute, const Scalar& factor) {
  run_cuda("scale", iter, compute,
           [factor = to_number(factor)](const ElementwiseArgs& args, cudaStream_t stream) {
             return launch_scale(args, factor, stream);
           });
}

TORCH_LIBRARY_IMPL(treadle, CUDA, m) { register_scale<scale_cuda>(m); }

}  // namespace treadle

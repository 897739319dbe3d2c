// cosine on CUDA. Twin: csrc/cpu/cosine.cpp.
#include "kernels/cosine.h"
#include "kernels/elementwise.cuh"
#include "kernels/math/cosine.h"

namespace treadle {

cudaError_t launch_cosine(const ElementwiseArgs& args, cudaStream_t stream) {
  return visit_floating(args.compute, [&](auto type) {
    using common_t = typename decltype(type)::type;
    return launch_map<common_t, 1>(args, Cosine{}, stream);
  });
}

cudaError_t launch_cosine_backward(const ElementwiseArgs& args, cudaStream_t stream) {
  return visit_floating(args.compute, [&](auto type) {
    using common_t = typename decltype(type)::type;
    return launch_map<common_t, 2>(args, CosineBackward{}, stream);
  });
}

}  // namespace treadle

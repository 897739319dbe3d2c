// scale on CUDA. Twin: csrc/cpu/scale.cpp.
#include "kernels/elementwise.cuh"
#include "kernels/math/scale.h"
#include "kernels/scale.h"

namespace treadle {

cudaError_t launch_scale(const ElementwiseArgs& args, Number factor, cudaStream_t stream) {
  return visit_number(args.compute, [&](auto type) {
    using common_t = typename decltype(type)::type;
    using acc = acc_t<common_t>;
    return launch_map<common_t, 1>(args, Scale<acc>{factor.to<acc>()}, stream);
  });
}

}  // namespace treadle

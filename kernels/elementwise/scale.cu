// scale on CUDA. Twin: kernels/elementwise/cpu/scale.cpp.
#include "kernels/elementwise/launchers.h"
#include "kernels/elementwise/map.cuh"
#include "kernels/math/scale.h"

namespace treadle {

cudaError_t launch_scale(const ElementwiseArgs& args, ScalarArg factor, cudaStream_t stream) {
  return visit_number(args.compute, [&](auto type) {
    using common_t = typename decltype(type)::type;
    using acc = acc_t<common_t>;
    return launch_map<common_t, 1>(args, Scale<acc>{factor.to<acc>()}, stream);
  });
}

}  // namespace treadle

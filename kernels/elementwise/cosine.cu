// cosine on CUDA. Twin: kernels/elementwise/cpu/cosine.cpp.
#include "kernels/elementwise/launchers.h"
#include "kernels/elementwise/map.cuh"
#include "kernels/elementwise/trig.cuh"

namespace treadle {

using math::Wave;

cudaError_t launch_cosine(const ElementwiseArgs& args, cudaStream_t stream) {
  return visit_floating(args.compute, [&](auto type) {
    using common_t = typename decltype(type)::type;
    return launch_map<common_t, 1>(args, WaveOf<Wave::kCosine, common_t>{}, stream);
  });
}

cudaError_t launch_cosine_backward(const ElementwiseArgs& args, cudaStream_t stream) {
  return visit_floating(args.compute, [&](auto type) {
    using common_t = typename decltype(type)::type;
    return launch_map<common_t, 2>(args, TimesWaveOf<Wave::kSine, true, common_t>{}, stream);
  });
}

}  // namespace treadle

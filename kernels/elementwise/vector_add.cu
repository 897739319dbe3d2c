// vector_add on CUDA. Twin: kernels/elementwise/cpu/vector_add.cpp.
#include "kernels/elementwise/launchers.h"
#include "kernels/elementwise/map.cuh"
#include "kernels/math/vector_add.h"

namespace treadle {

cudaError_t launch_vector_add(const ElementwiseArgs& args, ScalarArg alpha, cudaStream_t stream) {
  return visit_number(args.compute, [&](auto type) {
    using common_t = typename decltype(type)::type;
    using acc = acc_t<common_t>;
    return launch_map<common_t, 2>(args, VectorAdd<acc>{alpha.to<acc>()}, stream);
  });
}

cudaError_t launch_vector_add_scalar(const ElementwiseArgs& args, ScalarArg scalar,
                                     bool scalar_is_b, ScalarArg alpha, cudaStream_t stream) {
  return visit_number(args.compute, [&](auto type) {
    using common_t = typename decltype(type)::type;
    using acc = acc_t<common_t>;
    const VectorAddScalar<acc> f{alpha.to<acc>(), scalar.to<acc>(), scalar_is_b};
    return launch_map<common_t, 1>(args, f, stream);
  });
}

}  // namespace treadle

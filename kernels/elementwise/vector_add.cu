// vector_add on CUDA. Twin: csrc/cpu/vector_add.cpp.
#include "kernels/elementwise.cuh"
#include "kernels/math/vector_add.h"
#include "kernels/vector_add.h"

namespace treadle {

cudaError_t launch_vector_add(const ElementwiseArgs& args, Number alpha, cudaStream_t stream) {
  return visit_number(args.compute, [&](auto type) {
    using common_t = typename decltype(type)::type;
    using acc = acc_t<common_t>;
    return launch_map<common_t, 2>(args, VectorAdd<acc>{alpha.to<acc>()}, stream);
  });
}

cudaError_t launch_vector_add_scalar(const ElementwiseArgs& args, Number scalar, bool scalar_is_b,
                                     Number alpha, cudaStream_t stream) {
  return visit_number(args.compute, [&](auto type) {
    using common_t = typename decltype(type)::type;
    using acc = acc_t<common_t>;
    const VectorAddScalar<acc> f{alpha.to<acc>(), scalar.to<acc>(), scalar_is_b};
    return launch_map<common_t, 1>(args, f, stream);
  });
}

}  // namespace treadle

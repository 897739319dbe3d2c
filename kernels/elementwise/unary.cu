// The ops of unary_ops.h on CUDA. Twin: kernels/elementwise/cpu/unary.cpp.
#include "kernels/elementwise/launchers.h"
#include "kernels/elementwise/map.cuh"
#include "kernels/elementwise/trig.cuh"

namespace treadle {

template <class Op, bool kIntegers>
cudaError_t launch_forward(const ElementwiseArgs& args, cudaStream_t stream) {
  return visit_computed<kIntegers>(args.compute, [&](auto type) {
    using common_t = typename decltype(type)::type;
    return launch_map<common_t, 1>(args, typename Op::template Forward<common_t>{}, stream);
  });
}

template <class Op>
cudaError_t launch_backward(const ElementwiseArgs& args, cudaStream_t stream) {
  return visit_floating(args.compute, [&](auto type) {
    using common_t = typename decltype(type)::type;
    return launch_map<common_t, 2>(args, typename Op::template Backward<common_t>{}, stream);
  });
}

#define TREADLE_DEFINE_UNARY(op, Type, integers)                                         \
  cudaError_t launch_##op(const ElementwiseArgs& args, cudaStream_t stream) {            \
    return launch_forward<Type, integers>(args, stream);                                 \
  }                                                                                      \
  cudaError_t launch_##op##_backward(const ElementwiseArgs& args, cudaStream_t stream) { \
    return launch_backward<Type>(args, stream);                                          \
  }
TREADLE_UNARY_OPS(TREADLE_DEFINE_UNARY)

}  // namespace treadle

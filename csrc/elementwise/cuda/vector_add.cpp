// vector_add on CUDA. Kernel: kernels/elementwise/vector_add.cu.
#include "elementwise/vector_add.h"

#include "elementwise/cuda/loop.h"
#include "kernels/elementwise/launchers.h"

namespace treadle {

static void add_number(ElementwiseLoop& loop, ScalarArg scalar, bool scalar_is_b,
                       const Scalar& alpha) {
  run_cuda(loop,
           [=, alpha = to_scalar_arg(alpha)](const ElementwiseArgs& args, cudaStream_t stream) {
             return launch_vector_add_scalar(args, scalar, scalar_is_b, alpha, stream);
           });
}

static void add_number_cuda(ElementwiseLoop& loop, const Scalar& b, const Scalar& alpha) {
  add_number(loop, to_scalar_arg(b), /*scalar_is_b=*/true, alpha);
}

static void add_cuda(ElementwiseLoop& loop, const Scalar& alpha) {
  // A 0-dim CPU tensor is a number: the device must not read its memory.
  for (const int operand : {1, 2}) {
    if (!loop.iterator || !loop.iterator->is_cpu_scalar(operand)) continue;
    const ScalarArg scalar = to_scalar_arg(loop.iterator->tensor(operand).item());
    loop.iterator->remove_operand(operand);
    --loop.operands;
    return add_number(loop, scalar, /*scalar_is_b=*/operand == 2, alpha);
  }
  run_cuda(loop, [alpha = to_scalar_arg(alpha)](const ElementwiseArgs& args, cudaStream_t stream) {
    return launch_vector_add(args, alpha, stream);
  });
}

TORCH_LIBRARY_IMPL(treadle, CUDA, m) { register_vector_add<add_cuda, add_number_cuda>(m); }

}  // namespace treadle

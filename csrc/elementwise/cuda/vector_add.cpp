// vector_add on CUDA. Kernel: kernels/vector_add.cu.
#include "vector_add.h"

#include "cuda/run.h"
#include "kernels/vector_add.h"

namespace treadle {

static void add_number(ElementwiseLoop& loop, Number scalar, bool scalar_is_b,
                       const Scalar& alpha) {
  run_cuda(loop, [=, alpha = to_number(alpha)](const ElementwiseArgs& args, cudaStream_t stream) {
    return launch_vector_add_scalar(args, scalar, scalar_is_b, alpha, stream);
  });
}

static void add_number_cuda(ElementwiseLoop& loop, const Scalar& b, const Scalar& alpha) {
  add_number(loop, to_number(b), /*scalar_is_b=*/true, alpha);
}

static void add_cuda(ElementwiseLoop& loop, const Scalar& alpha) {
  // A 0-dim CPU tensor is a number: the device must not read its memory.
  for (const int operand : {1, 2}) {
    if (!loop.iterator || !loop.iterator->is_cpu_scalar(operand)) continue;
    const Number scalar = to_number(loop.iterator->tensor(operand).item());
    loop.iterator->remove_operand(operand);
    --loop.operands;
    return add_number(loop, scalar, /*scalar_is_b=*/operand == 2, alpha);
  }
  run_cuda(loop, [alpha = to_number(alpha)](const ElementwiseArgs& args, cudaStream_t stream) {
    return launch_vector_add(args, alpha, stream);
  });
}

TORCH_LIBRARY_IMPL(treadle, CUDA, m) { register_vector_add<add_cuda, add_number_cuda>(m); }

}  // namespace treadle

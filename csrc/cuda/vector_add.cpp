// vector_add on CUDA. Kernel: kernels/vector_add.cu.
#include "vector_add.h"

#include "cuda/elementwise.h"
#include "kernels/vector_add.h"

namespace treadle {

static void add_number(at::TensorIteratorBase& iter, ScalarType compute, Number scalar,
                       bool scalar_is_b, const Scalar& alpha) {
  run_cuda("vector_add", iter, compute,
           [=, alpha = to_number(alpha)](const ElementwiseArgs& args, cudaStream_t stream) {
             return launch_vector_add_scalar(args, scalar, scalar_is_b, alpha, stream);
           });
}

static void add_number_cuda(at::TensorIteratorBase& iter, ScalarType compute, const Scalar& b,
                            const Scalar& alpha) {
  add_number(iter, compute, to_number(b), /*scalar_is_b=*/true, alpha);
}

static void add_cuda(at::TensorIteratorBase& iter, ScalarType compute, const Scalar& alpha) {
  // A 0-dim CPU tensor is a number: the device must not read its memory.
  for (const int operand : {1, 2}) {
    if (!iter.is_cpu_scalar(operand)) continue;
    const Number scalar = to_number(iter.tensor(operand).item());
    iter.remove_operand(operand);
    return add_number(iter, compute, scalar, /*scalar_is_b=*/operand == 2, alpha);
  }
  run_cuda("vector_add", iter, compute,
           [alpha = to_number(alpha)](const ElementwiseArgs& args, cudaStream_t stream) {
             return launch_vector_add(args, alpha, stream);
           });
}

TORCH_LIBRARY_IMPL(treadle, CUDA, m) { register_vector_add<add_cuda, add_number_cuda>(m); }

}  // namespace treadle

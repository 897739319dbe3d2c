// Launches the elementwise kernels on CUDA, for csrc/elementwise/cuda/ and
// kernels/c_api/elementwise.cpp. Each launch function returns the error of its launch.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/common/exported.h"
#include "kernels/elementwise/args.h"
#include "kernels/elementwise/snake_args.h"
#include "kernels/elementwise/unary_ops.h"

namespace treadle {

cudaError_t launch_scale(const ElementwiseArgs& args, ScalarArg factor, cudaStream_t stream)
    TREADLE_EXPORTED(launch_scale);

// a + alpha * b. In the second function a or b is the number `scalar`.
cudaError_t launch_vector_add(const ElementwiseArgs& args, ScalarArg alpha, cudaStream_t stream)
    TREADLE_EXPORTED(launch_vector_add);
cudaError_t launch_vector_add_scalar(const ElementwiseArgs& args, ScalarArg scalar,
                                     bool scalar_is_b, ScalarArg alpha, cudaStream_t stream)
    TREADLE_EXPORTED(launch_vector_add_scalar);

// snake. snake_backward_chunks returns the number of chunks of work of the backward pass. Each
// chunk writes two sums per channel to args.partial.
cudaError_t launch_snake(const ElementwiseArgs& args, const SnakeForm& form, cudaStream_t stream)
    TREADLE_EXPORTED(launch_snake);
int64_t snake_backward_chunks(const SnakeBackwardArgs& args)
    TREADLE_EXPORTED(snake_backward_chunks);
cudaError_t launch_snake_backward(const SnakeBackwardArgs& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_snake_backward);

#define TREADLE_DECLARE_LAUNCH(op, ...)                                                \
  cudaError_t launch_##op(const ElementwiseArgs& args, cudaStream_t stream)            \
      TREADLE_EXPORTED(launch_##op);                                                   \
  cudaError_t launch_##op##_backward(const ElementwiseArgs& args, cudaStream_t stream) \
      TREADLE_EXPORTED(launch_##op##_backward);
TREADLE_UNARY_OPS(TREADLE_DECLARE_LAUNCH)
#undef TREADLE_DECLARE_LAUNCH

}  // namespace treadle

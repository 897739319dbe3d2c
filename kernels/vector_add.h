// vector_add on CUDA, as csrc/cuda/vector_add.cpp calls it.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/elementwise.h"

namespace treadle {

cudaError_t launch_vector_add(const ElementwiseArgs& args, Number alpha, cudaStream_t stream);

// One input; `scalar` stands for b, or for a.
cudaError_t launch_vector_add_scalar(const ElementwiseArgs& args, Number scalar, bool scalar_is_b,
                                     Number alpha, cudaStream_t stream);

}  // namespace treadle

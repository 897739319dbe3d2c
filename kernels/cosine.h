// cosine on CUDA, as csrc/cuda/cosine.cpp calls it.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/elementwise.h"

namespace treadle {

cudaError_t launch_cosine(const ElementwiseArgs& args, cudaStream_t stream);
cudaError_t launch_cosine_backward(const ElementwiseArgs& args, cudaStream_t stream);

}  // namespace treadle

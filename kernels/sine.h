// sine on CUDA, as csrc/cuda/sine.cpp calls it.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/elementwise.h"

namespace treadle {

cudaError_t launch_sine(const ElementwiseArgs& args, cudaStream_t stream);
cudaError_t launch_sine_backward(const ElementwiseArgs& args, cudaStream_t stream);

}  // namespace treadle

// scale on CUDA, as csrc/cuda/scale.cpp calls it.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/elementwise.h"

namespace treadle {

cudaError_t launch_scale(const ElementwiseArgs& args, Number factor, cudaStream_t stream);

}  // namespace treadle

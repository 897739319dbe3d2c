// What every CUDA backend function does around a launch.
#pragma once

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

namespace treadle {

// Raises for a failed launch; for a GPU this build has no code for, with the way to rebuild.
void check_launch(const char* op, cudaError_t error);

}  // namespace treadle

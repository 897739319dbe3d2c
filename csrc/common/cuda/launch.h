// Device guards, and the error check after every kernel launch.
#pragma once

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

namespace treadle {

// Raises for a failed launch; if the build has no code for this GPU, the error says how to rebuild.
void check_launch(const char* op, cudaError_t error);

}  // namespace treadle

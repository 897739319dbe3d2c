// lltm_layer's steps on CUDA, as csrc/cuda/lltm_layer.cpp calls them. A call does the pointwise
// part of one step; matrix products are cuBLAS's.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/recurrence_args.h"

namespace treadle {

// Of args.steps the first.
cudaError_t launch_lltm_step_forward(const RecurrenceForward& args, cudaStream_t stream);
cudaError_t launch_lltm_step_backward(const RecurrenceBackward& args, cudaStream_t stream);

}  // namespace treadle

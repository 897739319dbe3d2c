// Launches the LLTM cell's kernels on CUDA, for csrc/recurrent/lltm_cell/cuda/cell.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/common/exported.h"
#include "kernels/recurrent/lltm_cell/args.h"

namespace treadle {

cudaError_t launch_lltm_cell_forward(const LltmForward& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_lltm_cell_forward);
cudaError_t launch_lltm_cell_backward(const LltmBackward& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_lltm_cell_backward);

// For few rows (few_rows.cu).
cudaError_t launch_lltm_few_forward(const LltmFewForward& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_lltm_few_forward);
cudaError_t launch_lltm_few_gradients(const LltmGradients& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_lltm_few_gradients);

// For the work before and after the matrix products (pack_and_sum.cu).
cudaError_t launch_lltm_pack(const LltmPack& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_lltm_pack);
cudaError_t launch_lltm_bias_grad(const LltmBiasGrad& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_lltm_bias_grad);

}  // namespace treadle

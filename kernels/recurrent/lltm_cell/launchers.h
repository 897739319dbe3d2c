// The LLTM cell's pointwise part on CUDA, as csrc/cuda/lltm_cell.cpp calls it.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/lltm_args.h"

namespace treadle {

cudaError_t launch_lltm_cell_forward(const LltmForward& args, cudaStream_t stream);
cudaError_t launch_lltm_cell_backward(const LltmBackward& args, cudaStream_t stream);

// Around the matrix products: lltm_products.cu.
cudaError_t launch_lltm_pack(const LltmPack& args, cudaStream_t stream);
cudaError_t launch_lltm_bias_grad(const LltmBiasGrad& args, cudaStream_t stream);

}  // namespace treadle

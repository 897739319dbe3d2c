// Launches the kernels of one step of a cell on CUDA, for csrc/recurrent/cuda/cell_step.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/common/exported.h"
#include "kernels/recurrent/cell_step/args.h"

namespace treadle {

// These are for LSTM, GRU and RNN.
cudaError_t launch_cell_step_forward(const CellStepForward& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_cell_step_forward);
cudaError_t launch_cell_step_backward(const CellStepBackward& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_cell_step_backward);

// This is for any cell.
cudaError_t launch_cell_step_gradients(const CellStepGradients& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_cell_step_gradients);

}  // namespace treadle

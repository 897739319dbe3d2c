// Launches the sine layer's CUDA kernels, some of which include GEMMs, for
// csrc/sine_linear/cuda/sine_linear.cpp and kernels/c_api/pointwise.cpp. `processors` is the GPU's
// number of SMs.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/common/exported.h"
#include "kernels/sine_linear/args.h"
#include "kernels/sine_linear/jet_args.h"

namespace treadle {

// forward.cu
cudaError_t launch_sine_linear_forward(const SineLinearForward& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_sine_linear_forward);

// fused_forward.cu, for sm_90: GEMM and sines in one kernel. float32 is multiplied in tf32. The
// launch returns cudaErrorNotSupported if the driver cannot encode tensor maps.
bool sine_linear_fused_forward_supports(const SineLinearForward& args)
    TREADLE_EXPORTED(sine_linear_fused_forward_supports);
cudaError_t launch_sine_linear_fused_forward(const SineLinearForward& args, int processors,
                                             cudaStream_t stream)
    TREADLE_EXPORTED(launch_sine_linear_fused_forward);

// mma_forward.cu, the same for half types on GPUs of sm_80 and later that have no wgmma. The launch
// returns cudaErrorNotSupported if the current GPU has no code for it.
bool sine_linear_mma_forward_supports(const SineLinearForward& args)
    TREADLE_EXPORTED(sine_linear_mma_forward_supports);
cudaError_t launch_sine_linear_mma_forward(const SineLinearForward& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_sine_linear_mma_forward);

// backward.cu
cudaError_t launch_sine_linear_slope(const SineLinearSlope& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_sine_linear_slope);
cudaError_t launch_sine_linear_slope_backward(const SineLinearSlopeBackward& args,
                                              cudaStream_t stream)
    TREADLE_EXPORTED(launch_sine_linear_slope_backward);

// backward_bias.cu. The first function returns the number of rows of args.parts: a kernel sums the
// columns over that many blocks of rows (column_sums.cuh). In this call args.parts may be null.
int64_t sine_linear_backward_bias_parts(const SineLinearBackwardBias& args)
    TREADLE_EXPORTED(sine_linear_backward_bias_parts);
cudaError_t launch_sine_linear_backward_bias(const SineLinearBackwardBias& args,
                                             cudaStream_t stream)
    TREADLE_EXPORTED(launch_sine_linear_backward_bias);

// fused_backward.cu, for sm_90: all gradients in one pass over the rows. The second function
// returns the number of floats in `parts`. cudaErrorNotSupported has the same meaning as above.
bool sine_linear_fused_backward_supports(const SineLinearFusedBackward& args)
    TREADLE_EXPORTED(sine_linear_fused_backward_supports);
int64_t sine_linear_fused_backward_parts(const SineLinearFusedBackward& args, int processors)
    TREADLE_EXPORTED(sine_linear_fused_backward_parts);
cudaError_t launch_sine_linear_fused_backward(const SineLinearFusedBackward& args, void* parts,
                                              int processors, cudaStream_t stream)
    TREADLE_EXPORTED(launch_sine_linear_fused_backward);

// fused_jet.cu, for sm_90 and 2 or 3 coordinates: GEMM and sines in one kernel. float32 is
// multiplied in tf32. cudaErrorNotSupported has the same meaning as above.
bool sine_jet_fused_forward_supports(const SineJetForward& args)
    TREADLE_EXPORTED(sine_jet_fused_forward_supports);
cudaError_t launch_sine_jet_fused_forward(const SineJetForward& args, int processors,
                                          cudaStream_t stream)
    TREADLE_EXPORTED(launch_sine_jet_fused_forward);

// jet_forward.cu, jet_backward.cu. The second function returns the number of blocks of rows for
// column_sums.cuh. If it is more than 1, args.sums must have a row of O elements of acc_t for each
// block.
cudaError_t launch_sine_jet_forward(const SineJetForward& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_sine_jet_forward);
int64_t sine_jet_backward_parts(const SineJetBackward& args)
    TREADLE_EXPORTED(sine_jet_backward_parts);
cudaError_t launch_sine_jet_backward(const SineJetBackward& args, cudaStream_t stream)
    TREADLE_EXPORTED(launch_sine_jet_backward);

}  // namespace treadle

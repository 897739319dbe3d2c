// The sine layer's pointwise part on CUDA, as csrc/cuda/sine_linear.cpp calls it.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/sine_linear_args.h"

namespace treadle {

cudaError_t launch_sine_linear_forward(const SineLinearForward& args, cudaStream_t stream);
// With the product in it, made of input and weight, of float in tf32: on sm_90, for those that it
// takes. `processors` are the GPU's. cudaErrorNotSupported: a driver that cannot.
bool sine_linear_product_takes(const SineLinearForward& args);
cudaError_t launch_sine_linear_product(const SineLinearForward& args, int processors,
                                       cudaStream_t stream);
cudaError_t launch_sine_linear_slope(const SineLinearSlope& args, cudaStream_t stream);
// The P of these arguments, whose `parts` may be missing yet.
int64_t sine_linear_slope_sums_parts(const SineLinearSlopeSums& args);
cudaError_t launch_sine_linear_slope_sums(const SineLinearSlopeSums& args, cudaStream_t stream);
// All gradients in one pass over the rows, on sm_90, for those that it takes. `parts` is of as many
// float as the other function says.
bool sine_linear_gradients_takes(const SineLinearGradients& args);
int64_t sine_linear_gradients_parts(const SineLinearGradients& args, int processors);
cudaError_t launch_sine_linear_gradients(const SineLinearGradients& args, void* parts,
                                         int processors, cudaStream_t stream);
cudaError_t launch_sine_linear_slope_backward(const SineLinearSlopeBackward& args,
                                              cudaStream_t stream);

}  // namespace treadle

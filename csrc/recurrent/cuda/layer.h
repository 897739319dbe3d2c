// Declarations that the files of recurrent_layer on CUDA share. layer/layer.h explains the sizes,
// such as S.
#pragma once

#include "common/cuda/launch.h"
#include "recurrent/run/run.h"

namespace treadle {

inline void check_units(const char* op, int64_t batch, int64_t hidden) {
  TORCH_CHECK(batch * hidden < int64_t{1} << 31, op, ": B * H must be less than 2^31 on CUDA, got ",
              batch, " * ", hidden);
}

// ---- functions that run on the current device and stream

// out = a b, all in the layer's dtype.
void multiply_cuda(const LayerRun& run, const Matrix& out, const Matrix& a, const Matrix& b);

// Runs all steps of a direction with algorithm "tiles" or "warp".
void fused_forward_cuda(const LayerRun& run, const ForwardDirection& direction,
                        cudaStream_t stream);

// Run a whole pass with algorithm "cluster" or "grid".
LayerSaved persistent_forward_cuda(const LayerRun& run, bool save, cudaStream_t stream);
LayerGradients persistent_backward_cuda(const BackwardPass& pass, const StateGradients& states,
                                        cudaStream_t stream);

// Computes c before every step of a direction.
void c_states_cuda(const LayerRun& run, const BackwardDirection& direction, cudaStream_t stream);

// Writes the gradients of direction d's parameters to `found`, and adds what direction d
// contributes to the gradient of the input. `grad_gates` [S, GH] is contiguous. `known_h` is
// pass.previous_h(d), or undefined if that has not been computed. `bias_sums` is [parts, GH] with
// the same column sums as grad_gates, or undefined.
void add_parameters_cuda(const BackwardPass& pass, int64_t d, const Tensor& grad_gates,
                         const Tensor& known_h, const Tensor& bias_sums, LayerGradients& found,
                         cudaStream_t stream);

}  // namespace treadle

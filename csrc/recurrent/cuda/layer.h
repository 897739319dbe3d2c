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

// Runs all steps of a direction with algorithm "tiles" or "warp".
void fused_forward_cuda(const LayerRun& run, const ForwardDirection& direction,
                        cudaStream_t stream);

// Run a whole pass with algorithm "cluster" or "grid".
LayerSaved persistent_forward_cuda(const LayerRun& run, bool save, cudaStream_t stream);
LayerGradients persistent_backward_cuda(const BackwardPass& pass, const StateGradients& states,
                                        cudaStream_t stream);

// Computes c before every step of a direction.
void c_states_cuda(const LayerRun& run, const BackwardDirection& direction, cudaStream_t stream);

// Writes the gradients of the parameters of `count` directions, from d on, to `found`, and adds
// what these directions contribute to the gradient of the input. They run the same way in time.
// `grad_gates` is contiguous: [D, S, GH], or [S, GH] of the single direction. `known_h` is
// pass.previous_h(d) of the single direction, or undefined if that has not been computed.
// `bias_sums` is [D, parts, GH] with the same sums over rows as grad_gates, or undefined.
void add_parameters_cuda(const BackwardPass& pass, int64_t d, int64_t count,
                         const Tensor& grad_gates, const Tensor& known_h, const Tensor& bias_sums,
                         LayerGradients& found, cudaStream_t stream);

}  // namespace treadle

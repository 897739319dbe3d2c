// The pointwise part of a step that belongs to a StepGraph (csrc/recurrent/cuda/step_groups.h). The
// graph is launched repeatedly, so its kernels read the position of the launch from memory.
#pragma once

#ifndef __CUDACC_RTC__
#include <cuda_runtime_api.h>
#endif

#include "kernels/common/exported.h"
#include "kernels/recurrent/step_args.h"

namespace treadle {

// The position of a launch in the sequence of steps, in device memory. Rows of steps[0] are counted
// from base[0], and the rows of its products from base[1]. If base is null, both are counted
// from 0.
struct StepGroup {
  const int64_t* base = nullptr;
  // Backward pass: [rows, GH], a second copy of the gradients of the gates of steps[0]; or null.
  void* gates = nullptr;
};

#ifndef __CUDACC_RTC__
// In the forward pass, args.state_products must be given for every cell, so args.products is only
// read.

cudaError_t launch_grouped_forward(const RecurrenceForward& args, const StepGroup& group,
                                   cudaStream_t stream) TREADLE_EXPORTED(launch_grouped_forward);
cudaError_t launch_grouped_backward(const RecurrenceBackward& args, const StepGroup& group,
                                    cudaStream_t stream) TREADLE_EXPORTED(launch_grouped_backward);

// The same functions for one cell.
template <class Kind>
cudaError_t launch_grouped_forward(const RecurrenceForward& args, const StepGroup& group,
                                   cudaStream_t stream);
template <class Kind>
cudaError_t launch_grouped_backward(const RecurrenceBackward& args, const StepGroup& group,
                                    cudaStream_t stream);

// Writes the two numbers of a StepGroup's `base`.
cudaError_t launch_step_base(int64_t row, int64_t product, int64_t* device, cudaStream_t stream)
    TREADLE_EXPORTED(launch_step_base);

#endif

}  // namespace treadle

// The functions of launchers.h for one cell, `Kind` (such as math::Lltm, cell_info.h). The folders
// of the algorithms define these templates, and kernels/recurrent/instances instantiates them.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/recurrent/fused_args.h"
#include "kernels/recurrent/persistent_args.h"
#include "kernels/recurrent/plan/plan.h"
#include "kernels/recurrent/step_args.h"

namespace treadle {

template <class Kind>
cudaError_t launch_step_forward(const RecurrenceForward& args, cudaStream_t stream);
template <class Kind>
cudaError_t launch_step_backward(const RecurrenceBackward& args, cudaStream_t stream);

template <class Kind>
cudaError_t launch_warp_forward(const FusedForward& args, cudaStream_t stream);
template <class Kind>
cudaError_t launch_tiles_forward(const FusedForward& args, int processors, cudaStream_t stream);

// A launch of the kernel that a plan selects. If `fits` is not null, run_persistent() launches
// nothing, and its `args` may be null; it only sets *fits to whether the kernel fits on the device.
struct PersistentCall {
  const PersistentSizes& sizes;
  const RecurrencePlan& plan;
  cudaStream_t stream;
  bool* fits = nullptr;
};

template <class Kind>
cudaError_t run_persistent(const PersistentForward* args, const PersistentCall& call);
template <class Kind>
cudaError_t run_persistent(const PersistentBackward* args, const PersistentCall& call);

template <class Kind>
cudaError_t launch_c_states(const PersistentCStates& args, cudaStream_t stream);

}  // namespace treadle

// The host code of a recurrent layer on CUDA, which calls launchers.h: it checks whether a plan's
// kernel fits, and runs a pass over all rows and directions. csrc/recurrent/cuda and kernels/c_api
// both use it, so it must not depend on torch.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/common/exported.h"
#include "kernels/recurrent/persistent_args.h"
#include "kernels/recurrent/plan/plan.h"

namespace treadle {

// Sets *fits to whether the launch of the plan's kernel fits on the current device, or on the part
// of it that this process may use.
cudaError_t plan_fits(const RecurrenceSizes& sizes, const RecurrencePlan& plan, bool backward,
                      bool* fits) TREADLE_EXPORTED(plan_fits);

// ---- the arguments of a pass that depend only on sizes. Rows of H units are `width` elements
// apart; all steps together have `rows` rows. The caller still has to set the pointers.

// The sizes of a dense batch, with all its rows.
PersistentSizes persistent_sizes(const RecurrenceSizes& sizes, bool half_c)
    TREADLE_EXPORTED(persistent_sizes);

// `gates` is the number of gates per unit in the input products.
PersistentForward forward_arguments(const PersistentSizes& sizes, int64_t rows, int64_t width,
                                    int gates) TREADLE_EXPORTED(forward_arguments);

struct BackwardArguments {
  PersistentCStates c_states;
  PersistentBackward steps;
};
BackwardArguments backward_arguments(const PersistentSizes& sizes, int64_t rows, int64_t width)
    TREADLE_EXPORTED(backward_arguments);

// Bytes of the c states of all steps, rounded up to a multiple of 256.
inline size_t c_states_bytes(const RecurrenceSizes& sizes, int64_t rows) {
  const int64_t elements = sizes.directions * rows * sizes.hidden * cell_info(sizes.cell).c_parts;
  return static_cast<size_t>((elements * acc_bytes(sizes.dtype) + 255) / 256 * 256);
}

// ---- passes of persistent plans

// Bytes of a pass's workspace, through which the blocks of a grid exchange packets.
inline size_t workspace_bytes(const RecurrenceSizes& sizes, const RecurrencePlan& plan) {
  return plan.workspace(plan.rows_at_once(sizes.batch), plan.directions_at_once(sizes.directions));
}

cudaError_t run_forward(PersistentForward args, const RecurrencePlan& plan, void* workspace,
                        cudaStream_t stream) TREADLE_EXPORTED(run_forward);

// First computes, in one launch, the c that each step began with. The steps read these values, so
// args.steps.c_states need not be set.
cudaError_t run_backward(const BackwardArguments& args, const RecurrencePlan& plan, void* workspace,
                         cudaStream_t stream) TREADLE_EXPORTED(run_backward);

}  // namespace treadle

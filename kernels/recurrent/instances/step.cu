// Instances of the kernels that every GPU can run: step/step.cuh, warp/forward.cuh and
// scan/c_states.cuh. Twin: kernels/recurrent/cpu/rows.cpp.
#include "kernels/recurrent/instances/cell.h"
#include "kernels/recurrent/scan/c_states.cuh"
#include "kernels/recurrent/step/step.cuh"
#include "kernels/recurrent/warp/forward.cuh"

namespace treadle {

template cudaError_t launch_step_forward<Cell>(const RecurrenceForward&, cudaStream_t);
template cudaError_t launch_step_backward<Cell>(const RecurrenceBackward&, cudaStream_t);
template cudaError_t launch_grouped_forward<Cell>(const RecurrenceForward&, const StepGroup&,
                                                  cudaStream_t);
template cudaError_t launch_grouped_backward<Cell>(const RecurrenceBackward&, const StepGroup&,
                                                   cudaStream_t);
template cudaError_t launch_warp_forward<Cell>(const FusedForward&, cudaStream_t);
template cudaError_t launch_c_states<Cell>(const PersistentCStates&, cudaStream_t);

}  // namespace treadle

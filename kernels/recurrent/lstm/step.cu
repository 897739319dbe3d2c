// LSTM's instances of kernels/recurrent/step.cuh and warp_forward.cuh. Twin:
// kernels/recurrent/cpu/rows.cpp.
#include "kernels/math/cells/lstm.h"
#include "kernels/recurrent/step.cuh"
#include "kernels/recurrent/warp_forward.cuh"

namespace treadle {

template cudaError_t launch_step_forward<math::Lstm>(const RecurrenceForward&, cudaStream_t);
template cudaError_t launch_step_backward<math::Lstm>(const RecurrenceBackward&, cudaStream_t);
template cudaError_t launch_grouped_forward<math::Lstm>(const RecurrenceForward&, const StepGroup&,
                                                        cudaStream_t);
template cudaError_t launch_grouped_backward<math::Lstm>(const RecurrenceBackward&,
                                                         const StepGroup&, cudaStream_t);
template cudaError_t launch_warp_forward<math::Lstm>(const FusedForward&, cudaStream_t);

}  // namespace treadle

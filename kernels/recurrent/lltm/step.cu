// LLTM's instances of kernels/recurrent/step.cuh. Twin: kernels/recurrent/cpu/rows.cpp.
#include "kernels/math/cells/lltm.h"
#include "kernels/recurrent/step.cuh"

namespace treadle {

template cudaError_t launch_step_forward<math::Lltm>(const RecurrenceForward&, cudaStream_t);
template cudaError_t launch_step_backward<math::Lltm>(const RecurrenceBackward&, cudaStream_t);

}  // namespace treadle

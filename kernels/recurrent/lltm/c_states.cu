// LLTM's instance of kernels/recurrent/c_states.cuh.
#include "kernels/math/cells/lltm.h"
#include "kernels/recurrent/c_states.cuh"

namespace treadle {

template cudaError_t launch_c_states<math::Lltm>(const PersistentCStates&, cudaStream_t);

}  // namespace treadle

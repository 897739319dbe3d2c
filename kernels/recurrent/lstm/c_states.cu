// LSTM's instance of kernels/recurrent/c_states.cuh.
#include "kernels/math/cells/lstm.h"
#include "kernels/recurrent/c_states.cuh"

namespace treadle {

template cudaError_t launch_c_states<math::Lstm>(const PersistentCStates&, cudaStream_t);

}  // namespace treadle

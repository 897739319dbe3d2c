// Instances of kernels/recurrent/scan/c_states.cuh.
#include "kernels/recurrent/instances/cell.h"
#include "kernels/recurrent/scan/c_states.cuh"

namespace treadle {

template cudaError_t launch_c_states<Cell>(const PersistentCStates&, cudaStream_t);

}  // namespace treadle

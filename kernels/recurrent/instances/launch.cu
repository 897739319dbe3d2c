// Instances of kernels/recurrent/launch.cuh.
#include "kernels/recurrent/instances/cell.h"
#include "kernels/recurrent/launch.cuh"

namespace treadle {

template cudaError_t run_persistent<Cell>(const PersistentForward*, const PersistentCall&);
template cudaError_t run_persistent<Cell>(const PersistentBackward*, const PersistentCall&);

}  // namespace treadle

// Instances of kernels/recurrent/block in half types.
#include "kernels/recurrent/block/launch.cuh"
#include "kernels/recurrent/instances/cell.h"

namespace treadle {

template cudaError_t run_half_block<Cell>(Dtype, const PersistentForward*, const ClusterCall&);
template cudaError_t run_half_block<Cell>(Dtype, const PersistentBackward*, const ClusterCall&);

}  // namespace treadle

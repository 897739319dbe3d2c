// Instances of kernels/recurrent/cluster/fp16x2_forward.cuh.
#include "kernels/recurrent/cluster/fp16x2_forward.cuh"
#include "kernels/recurrent/instances/cell.h"

namespace treadle {

template cudaError_t run_cluster_split<Cell>(const PersistentForward*, const ClusterCall&);

}  // namespace treadle

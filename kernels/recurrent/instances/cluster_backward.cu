// Instances of kernels/recurrent/cluster/backward.cuh.
#include "kernels/recurrent/cluster/backward.cuh"
#include "kernels/recurrent/instances/cell.h"

namespace treadle {

template cudaError_t run_cluster_any<Cell>(Dtype, const PersistentBackward*, const ClusterCall&);

}  // namespace treadle

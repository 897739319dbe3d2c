// Instances of kernels/recurrent/cluster/dense_forward.cuh.
#include "kernels/recurrent/cluster/dense_forward.cuh"
#include "kernels/recurrent/instances/cell.h"

namespace treadle {

template cudaError_t run_cluster_dense<Cell>(Dtype, const PersistentForward*, const ClusterCall&);

}  // namespace treadle

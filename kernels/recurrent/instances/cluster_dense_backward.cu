// Instances of kernels/recurrent/cluster/dense_backward.cuh.
#include "kernels/recurrent/cluster/dense_backward.cuh"
#include "kernels/recurrent/instances/cell.h"

namespace treadle {

template cudaError_t run_cluster_dense<Cell>(Dtype, const PersistentBackward*, const ClusterCall&);

}  // namespace treadle

// Instances of the cluster kernels for dense batches, in half types and float32.
#include "kernels/recurrent/cluster/dense_launch.cuh"
#include "kernels/recurrent/cluster/fp16x2_forward.cuh"
#include "kernels/recurrent/instances/cell.h"

namespace treadle {

template cudaError_t run_cluster_dense<Cell>(Dtype, const PersistentForward*, const ClusterCall&);
template cudaError_t run_cluster_dense<Cell>(Dtype, const PersistentBackward*, const ClusterCall&);
template cudaError_t run_cluster_split<Cell>(const PersistentForward*, const ClusterCall&);

}  // namespace treadle

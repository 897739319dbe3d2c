// Instances of the kernels that multiply by fma: those of a single block, and those of clusters in
// float32 for any batch.
#include "kernels/recurrent/cluster/fma_launch.cuh"
#include "kernels/recurrent/instances/cell.h"

namespace treadle {

template cudaError_t run_half_block<Cell>(Dtype, const PersistentForward*, const ClusterCall&);
template cudaError_t run_half_block<Cell>(Dtype, const PersistentBackward*, const ClusterCall&);
template cudaError_t run_cluster_fp32<Cell>(const PersistentForward*, const ClusterCall&);
template cudaError_t run_cluster_fp32<Cell>(const PersistentBackward*, const ClusterCall&);

}  // namespace treadle

// Instances of the float32 kernels: block/ and cluster/fma_*.cuh.
#include "kernels/recurrent/cluster/fma_launch.cuh"
#include "kernels/recurrent/instances/cell.h"

namespace treadle {

template cudaError_t run_cluster_fp32<Cell>(const PersistentForward*, const ClusterCall&);
template cudaError_t run_cluster_fp32<Cell>(const PersistentBackward*, const ClusterCall&);

}  // namespace treadle

// Instances of the cluster kernels in half types for any batch.
#include "kernels/recurrent/cluster/backward.cuh"
#include "kernels/recurrent/cluster/forward.cuh"
#include "kernels/recurrent/instances/cell.h"

namespace treadle {

template cudaError_t run_cluster_any<Cell>(Dtype, const PersistentForward*, const ClusterCall&);
template cudaError_t run_cluster_any<Cell>(Dtype, const PersistentBackward*, const ClusterCall&);

}  // namespace treadle

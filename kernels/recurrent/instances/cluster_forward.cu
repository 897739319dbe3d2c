// Instances of kernels/recurrent/cluster/forward.cuh.
#include "kernels/recurrent/cluster/forward.cuh"
#include "kernels/recurrent/instances/cell.h"

namespace treadle {

template cudaError_t run_cluster_any<Cell>(Dtype, const PersistentForward*, const ClusterCall&);

}  // namespace treadle

// Instances of kernels/recurrent/cluster/forward.cuh and of cluster/launch.cuh, forward.
#include "kernels/recurrent/cluster/forward.cuh"
#include "kernels/recurrent/cluster/launch.cuh"
#include "kernels/recurrent/instances/cell.h"

namespace treadle {

template cudaError_t run_cluster_any<Cell>(Dtype, const PersistentForward*, const ClusterCall&);
template cudaError_t launch_cluster_forward<Cell>(const PersistentForward&, const ClusterPlan&,
                                                  cudaStream_t);
template cudaError_t forward_clusters_at_once<Cell>(Dtype, const ClusterPlan&, int*);

}  // namespace treadle

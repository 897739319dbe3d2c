// Instances of kernels/recurrent/cluster/backward.cuh and of cluster/launch.cuh, backward.
#include "kernels/recurrent/cluster/backward.cuh"
#include "kernels/recurrent/cluster/launch.cuh"
#include "kernels/recurrent/instances/cell.h"

namespace treadle {

template cudaError_t run_cluster_any<Cell>(Dtype, const PersistentBackward*, const ClusterCall&);
template cudaError_t launch_cluster_backward<Cell>(const PersistentBackward&, const ClusterPlan&,
                                                   cudaStream_t);
template cudaError_t backward_clusters_at_once<Cell>(Dtype, const ClusterPlan&, int*);

}  // namespace treadle

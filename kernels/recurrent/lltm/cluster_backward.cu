// LLTM's instances of kernels/recurrent/cluster_backward.cuh and of cluster_launch.cuh, backward.
#include "kernels/math/cells/lltm.h"
#include "kernels/recurrent/cluster_backward.cuh"
#include "kernels/recurrent/cluster_launch.cuh"

namespace treadle {

template cudaError_t run_cluster_any<math::Lltm>(Dtype, const PersistentBackward*,
                                                 const ClusterCall&);
template cudaError_t launch_cluster_backward<math::Lltm>(const PersistentBackward&,
                                                         const ClusterPlan&, cudaStream_t);
template cudaError_t backward_clusters_at_once<math::Lltm>(Dtype, const ClusterPlan&, int*);

}  // namespace treadle

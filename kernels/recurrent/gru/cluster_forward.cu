// GRU's instances of kernels/recurrent/cluster_forward.cuh and of cluster_launch.cuh, forward.
#include "kernels/math/cells/gru.h"
#include "kernels/recurrent/cluster_forward.cuh"
#include "kernels/recurrent/cluster_launch.cuh"

namespace treadle {

template cudaError_t run_cluster_any<math::Gru>(Dtype, const PersistentForward*,
                                                const ClusterCall&);
template cudaError_t launch_cluster_forward<math::Gru>(const PersistentForward&, const ClusterPlan&,
                                                       cudaStream_t);
template cudaError_t forward_clusters_at_once<math::Gru>(Dtype, const ClusterPlan&, int*);

}  // namespace treadle

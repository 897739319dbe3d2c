// GRU's instances of kernels/recurrent/cluster_backward.cuh and of cluster_launch.cuh, backward.
#include "kernels/math/cells/gru.h"
#include "kernels/recurrent/cluster_backward.cuh"
#include "kernels/recurrent/cluster_launch.cuh"

namespace treadle {

template cudaError_t run_cluster_any<math::Gru>(Dtype, const PersistentBackward*,
                                                const ClusterCall&);
template cudaError_t launch_cluster_backward<math::Gru>(const PersistentBackward&,
                                                        const ClusterPlan&, cudaStream_t);
template cudaError_t backward_clusters_at_once<math::Gru>(Dtype, const ClusterPlan&, int*);

}  // namespace treadle

// LLTM's instances of kernels/recurrent/cluster_forward.cuh.
#include "kernels/math/cells/lltm.h"
#include "kernels/recurrent/cluster_launch.cuh"

namespace treadle {

template cudaError_t launch_cluster_forward<math::Lltm>(const PersistentForward&,
                                                        const ClusterPlan&, cudaStream_t);
template cudaError_t forward_clusters_at_once<math::Lltm>(Dtype, const ClusterPlan&, int*);

}  // namespace treadle

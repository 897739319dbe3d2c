// LSTM's instances of kernels/recurrent/cluster_forward.cuh.
#include "kernels/math/cells/lstm.h"
#include "kernels/recurrent/cluster_launch.cuh"

namespace treadle {

template cudaError_t launch_cluster_forward<math::Lstm>(const PersistentForward&,
                                                        const ClusterPlan&, cudaStream_t);
template cudaError_t forward_clusters_at_once<math::Lstm>(Dtype, const ClusterPlan&, int*);

}  // namespace treadle

// LSTM's instances of kernels/recurrent/cluster_backward.cuh.
#include "kernels/math/cells/lstm.h"
#include "kernels/recurrent/cluster_launch.cuh"

namespace treadle {

template cudaError_t launch_cluster_backward<math::Lstm>(const PersistentBackward&,
                                                         const ClusterPlan&, cudaStream_t);
template cudaError_t backward_clusters_at_once<math::Lstm>(Dtype, const ClusterPlan&, int*);

}  // namespace treadle

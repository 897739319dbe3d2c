// GRU's instances of kernels/recurrent/cluster_dense_backward.cuh.
#include "kernels/math/cells/gru.h"
#include "kernels/recurrent/cluster_dense_launch.cuh"

namespace treadle {

template bool run_cluster_dense<math::Gru>(const PersistentBackward&, const ClusterCall&,
                                           cudaError_t*);

}  // namespace treadle

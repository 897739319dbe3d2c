// GRU's instances of kernels/recurrent/cluster_dense_forward.cuh.
#include "kernels/math/cells/gru.h"
#include "kernels/recurrent/cluster_dense_launch.cuh"

namespace treadle {

template bool run_cluster_dense<math::Gru>(const PersistentForward&, const ClusterCall&,
                                           cudaError_t*);

}  // namespace treadle

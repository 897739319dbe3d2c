// GRU's instances of kernels/recurrent/cluster_split_forward.cuh.
#include "kernels/math/cells/gru.h"
#include "kernels/recurrent/cluster_split_launch.cuh"

namespace treadle {

template bool run_cluster_split<math::Gru>(const PersistentForward&, const ClusterCall&,
                                           cudaError_t*);

}  // namespace treadle

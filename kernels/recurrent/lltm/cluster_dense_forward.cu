// LLTM's instances of kernels/recurrent/cluster_dense_forward.cuh.
#include "kernels/math/cells/lltm.h"
#include "kernels/recurrent/cluster_dense_launch.cuh"

namespace treadle {

template bool run_cluster_dense<math::Lltm>(const PersistentForward&, const ClusterCall&,
                                            cudaError_t*);

}  // namespace treadle

// LLTM's instances of kernels/recurrent/cluster_backward.cuh.
#include "kernels/math/cells/lltm.h"
#include "kernels/recurrent/cluster_backward.cuh"

namespace treadle {

template cudaError_t run_cluster_any<math::Lltm>(Dtype, const PersistentBackward*,
                                                 const ClusterCall&);

}  // namespace treadle

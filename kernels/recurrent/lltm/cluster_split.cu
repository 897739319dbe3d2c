// LLTM's instances of kernels/recurrent/cluster_split_forward.cuh.
#include "kernels/math/cells/lltm.h"
#include "kernels/recurrent/cluster_split_forward.cuh"

namespace treadle {

template cudaError_t run_cluster_split<math::Lltm>(const PersistentForward*, const ClusterCall&);

}  // namespace treadle

// GRU's instances of kernels/recurrent/cluster_split_forward.cuh.
#include "kernels/math/cells/gru.h"
#include "kernels/recurrent/cluster_split_forward.cuh"

namespace treadle {

template cudaError_t run_cluster_split<math::Gru>(const PersistentForward*, const ClusterCall&);

}  // namespace treadle

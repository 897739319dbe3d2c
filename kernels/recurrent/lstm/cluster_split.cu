// LSTM's instances of kernels/recurrent/cluster_split_forward.cuh.
#include "kernels/math/cells/lstm.h"
#include "kernels/recurrent/cluster_split_forward.cuh"

namespace treadle {

template cudaError_t run_cluster_split<math::Lstm>(const PersistentForward*, const ClusterCall&);

}  // namespace treadle

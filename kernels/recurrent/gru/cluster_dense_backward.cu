// GRU's instances of kernels/recurrent/cluster_dense_backward.cuh.
#include "kernels/math/cells/gru.h"
#include "kernels/recurrent/cluster_dense_backward.cuh"

namespace treadle {

template cudaError_t run_cluster_dense<math::Gru>(Dtype, const PersistentBackward*,
                                                  const ClusterCall&);

}  // namespace treadle

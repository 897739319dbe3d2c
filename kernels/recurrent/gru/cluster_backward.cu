// GRU's instances of kernels/recurrent/cluster_backward.cuh.
#include "kernels/math/cells/gru.h"
#include "kernels/recurrent/cluster_backward.cuh"

namespace treadle {

template cudaError_t run_cluster_any<math::Gru>(Dtype, const PersistentBackward*,
                                                const ClusterCall&);

}  // namespace treadle

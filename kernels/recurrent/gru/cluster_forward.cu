// GRU's instances of kernels/recurrent/cluster_forward.cuh.
#include "kernels/math/cells/gru.h"
#include "kernels/recurrent/cluster_forward.cuh"

namespace treadle {

template cudaError_t run_cluster_any<math::Gru>(Dtype, const PersistentForward*,
                                                const ClusterCall&);

}  // namespace treadle

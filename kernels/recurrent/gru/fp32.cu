// GRU's instances of the float32 kernels: kernels/recurrent/{block,cluster_fp32}_*.cuh.
#include "kernels/math/cells/gru.h"
#include "kernels/recurrent/cluster_fp32_launch.cuh"

namespace treadle {

template cudaError_t run_cluster_fp32<math::Gru>(const PersistentForward*, const ClusterCall&);
template cudaError_t run_cluster_fp32<math::Gru>(const PersistentBackward*, const ClusterCall&);

}  // namespace treadle

// LSTM's instances of kernels/recurrent/cluster_split_forward.cuh.
#include "kernels/math/cells/lstm.h"
#include "kernels/recurrent/cluster_split_launch.cuh"

namespace treadle {

template bool run_cluster_split<math::Lstm>(const PersistentForward&, const ClusterCall&,
                                            cudaError_t*);

}  // namespace treadle

// LLTM's instances of kernels/recurrent/block_*.cuh in half types.
#include "kernels/math/cells/lltm.h"
#include "kernels/recurrent/block_launch.cuh"

namespace treadle {

template cudaError_t run_half_block<math::Lltm>(Dtype, const PersistentForward*,
                                                const ClusterCall&);
template cudaError_t run_half_block<math::Lltm>(Dtype, const PersistentBackward*,
                                                const ClusterCall&);

}  // namespace treadle

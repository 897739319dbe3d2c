// LLTM's instances of kernels/recurrent/tiles_*.cuh.
#include "kernels/math/cells/lltm.h"
#include "kernels/recurrent/tiles_forward.cuh"

namespace treadle {

template cudaError_t launch_tiles_forward<math::Lltm>(const FusedForward&, int, cudaStream_t);

}  // namespace treadle

// LLTM's launch of the grid kernels.
#include "kernels/math/cells/lltm.h"
#include "kernels/recurrent/grid_launch.cuh"

namespace treadle {

template cudaError_t launch_grid_forward<math::Lltm>(const PersistentForward&, int, cudaStream_t);
template cudaError_t launch_grid_backward<math::Lltm>(const PersistentBackward&, int, cudaStream_t);
template cudaError_t grid_fits<math::Lltm>(bool, const PersistentSizes&, int, bool*);

}  // namespace treadle

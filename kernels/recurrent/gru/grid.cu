// GRU's launch of the grid kernels.
#include "kernels/math/cells/gru.h"
#include "kernels/recurrent/grid_launch.cuh"

namespace treadle {

template cudaError_t launch_grid_forward<math::Gru>(const PersistentForward&, int, cudaStream_t);
template cudaError_t launch_grid_backward<math::Gru>(const PersistentBackward&, int, cudaStream_t);
template cudaError_t grid_fits<math::Gru>(bool, const PersistentSizes&, int, bool*);

}  // namespace treadle

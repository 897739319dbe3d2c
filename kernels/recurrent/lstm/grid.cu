// LSTM's launch of the grid kernels.
#include "kernels/math/cells/lstm.h"
#include "kernels/recurrent/grid_launch.cuh"

namespace treadle {

template cudaError_t launch_grid_forward<math::Lstm>(const PersistentForward&, int, cudaStream_t);
template cudaError_t launch_grid_backward<math::Lstm>(const PersistentBackward&, int, cudaStream_t);
template cudaError_t grid_fits<math::Lstm>(bool, const PersistentSizes&, int, bool*);

}  // namespace treadle

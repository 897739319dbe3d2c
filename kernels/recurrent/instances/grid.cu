// The launch of the grid kernels.
#include "kernels/recurrent/grid/launch.cuh"
#include "kernels/recurrent/instances/cell.h"

namespace treadle {

template cudaError_t launch_grid_forward<Cell>(const PersistentForward&, int, cudaStream_t);
template cudaError_t launch_grid_backward<Cell>(const PersistentBackward&, int, cudaStream_t);
template cudaError_t grid_fits<Cell>(bool, const PersistentSizes&, int, bool*);

}  // namespace treadle

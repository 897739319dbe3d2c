// Instances of the grid kernels in half types for sm_90.
#include "kernels/recurrent/grid/half_backward.cuh"
#include "kernels/recurrent/grid/half_forward.cuh"
#include "kernels/recurrent/grid/half_launch.cuh"
#include "kernels/recurrent/instances/cell.h"

namespace treadle {

template cudaError_t run_grid_half<Cell, true>(const PersistentForward*, const GridCall&);
template cudaError_t run_grid_half<Cell, true>(const PersistentBackward*, const GridCall&);
template cudaError_t run_grid_h2048<Cell, true>(const PersistentForward*, const GridCall&);

}  // namespace treadle

// Instances of the grid kernels in half types for GPUs of sm_80 and later, except sm_90.
#include "kernels/recurrent/grid/half_backward.cuh"
#include "kernels/recurrent/grid/half_forward.cuh"
#include "kernels/recurrent/grid/half_launch.cuh"
#include "kernels/recurrent/instances/cell.h"

namespace treadle {

template cudaError_t run_grid_half<Cell, false>(const PersistentForward*, const GridCall&);
template cudaError_t run_grid_half<Cell, false>(const PersistentBackward*, const GridCall&);
template cudaError_t run_grid_h2048<Cell, false>(const PersistentForward*, const GridCall&);

}  // namespace treadle

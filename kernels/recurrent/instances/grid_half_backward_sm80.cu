// Instances of kernels/recurrent/grid/half_backward.cuh for GPUs of sm_80 and later, except sm_90.
#include "kernels/recurrent/grid/half_launch.cuh"
#include "kernels/recurrent/instances/cell.h"

namespace treadle {

template cudaError_t run_grid_half<Cell, false>(const PersistentBackward*, const GridCall&);

}  // namespace treadle

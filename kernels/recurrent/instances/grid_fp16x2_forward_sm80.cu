// Instances of kernels/recurrent/grid/fp16x2_forward.cuh for GPUs of sm_80 and later, except sm_90.
#include "kernels/recurrent/grid/fp16x2_launch.cuh"
#include "kernels/recurrent/instances/cell.h"

namespace treadle {

template cudaError_t run_grid_split<Cell, false>(const PersistentForward*, const GridCall&);

}  // namespace treadle

// Instances of kernels/recurrent/grid/fp16x2_forward.cuh for other GPUs since sm_80.
#include "kernels/recurrent/grid/fp16x2_launch.cuh"
#include "kernels/recurrent/instances/cell.h"

namespace treadle {

template cudaError_t run_grid_split<Cell, false>(const PersistentForward*, const GridCall&);

}  // namespace treadle

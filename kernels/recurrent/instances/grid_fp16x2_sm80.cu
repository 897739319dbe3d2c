// Instances of the grid kernels in float32 for GPUs of sm_80 and later, except sm_90.
#include "kernels/recurrent/grid/fp16x2_backward.cuh"
#include "kernels/recurrent/grid/fp16x2_backward_launch.cuh"
#include "kernels/recurrent/grid/fp16x2_forward.cuh"
#include "kernels/recurrent/grid/fp16x2_launch.cuh"
#include "kernels/recurrent/instances/cell.h"

namespace treadle {

template cudaError_t run_grid_split<Cell, false>(const PersistentForward*, const GridCall&);
template cudaError_t run_grid_split<Cell, false>(const PersistentBackward*, const GridCall&);

}  // namespace treadle

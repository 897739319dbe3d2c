// GRU's instances of kernels/recurrent/grid_split_forward.cuh for other GPUs since sm_80.
#include "kernels/math/cells/gru.h"
#include "kernels/recurrent/grid_split_launch.cuh"

namespace treadle {

template cudaError_t run_grid_split<math::Gru, false>(const PersistentForward*, const GridCall&);

}  // namespace treadle

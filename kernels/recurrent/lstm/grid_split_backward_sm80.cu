// LSTM's instances of kernels/recurrent/grid_split_backward.cuh for other GPUs since sm_80.
#include "kernels/math/cells/lstm.h"
#include "kernels/recurrent/grid_split_backward_launch.cuh"

namespace treadle {

template cudaError_t run_grid_split<math::Lstm, false>(const PersistentBackward*, const GridCall&);

}  // namespace treadle

// LSTM's instances of kernels/recurrent/grid_split_forward.cuh.
#include "kernels/math/cells/lstm.h"
#include "kernels/recurrent/grid_split_launch.cuh"

namespace treadle {

template cudaError_t run_grid_split<math::Lstm>(const PersistentForward*, const GridCall&);

}  // namespace treadle

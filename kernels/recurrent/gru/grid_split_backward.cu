// GRU's instances of kernels/recurrent/grid_split_backward.cuh.
#include "kernels/math/cells/gru.h"
#include "kernels/recurrent/grid_split_backward_launch.cuh"

namespace treadle {

template cudaError_t run_grid_split<math::Gru>(const PersistentBackward*, const GridCall&);

}  // namespace treadle

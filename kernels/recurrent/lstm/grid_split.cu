// LSTM's instances of kernels/recurrent/grid_split_forward.cuh for sm_90.
#include "kernels/math/cells/lstm.h"
#include "kernels/recurrent/grid_split_launch.cuh"

namespace treadle {

template cudaError_t run_grid_split<math::Lstm, true>(const PersistentForward*, const GridCall&);

}  // namespace treadle

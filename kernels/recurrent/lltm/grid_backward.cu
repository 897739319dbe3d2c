// LLTM's instances of kernels/recurrent/grid_backward.cuh for sm_90.
#include "kernels/math/cells/lltm.h"
#include "kernels/recurrent/grid_half_launch.cuh"

namespace treadle {

template cudaError_t run_grid_half<math::Lltm, true>(const PersistentBackward*, const GridCall&);

}  // namespace treadle

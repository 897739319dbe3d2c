// LLTM's instances of kernels/recurrent/grid_forward.cuh for other GPUs since sm_80.
#include "kernels/math/cells/lltm.h"
#include "kernels/recurrent/grid_half_launch.cuh"

namespace treadle {

template cudaError_t run_grid_half<math::Lltm, false>(const PersistentForward*, const GridCall&);
template cudaError_t run_grid_h2048<math::Lltm, false>(const PersistentForward*, const GridCall&);

}  // namespace treadle

// GRU's instances of kernels/recurrent/grid_forward.cuh for H beyond kGridHidden.
#include "kernels/math/cells/gru.h"
#include "kernels/recurrent/grid_wide_launch.cuh"

namespace treadle {

template cudaError_t run_grid_wide<math::Gru>(const PersistentForward*, const GridCall&);

}  // namespace treadle

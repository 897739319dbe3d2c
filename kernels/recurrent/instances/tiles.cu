// Instances of kernels/recurrent/tiles.
#include "kernels/recurrent/instances/cell.h"
#include "kernels/recurrent/tiles/forward.cuh"

namespace treadle {

template cudaError_t launch_tiles_forward<Cell>(const FusedForward&, int, cudaStream_t);

}  // namespace treadle

// LSTM's instances of kernels/recurrent/tiles_*.cuh.
#include "kernels/math/cells/lstm.h"
#include "kernels/recurrent/tiles_forward.cuh"

namespace treadle {

template cudaError_t launch_tiles_forward<math::Lstm>(const FusedForward&, int, cudaStream_t);

}  // namespace treadle

// LSTM's launches of the kernels that plans name.
#include "kernels/math/cells/lstm.h"
#include "kernels/recurrent/persistent_launch.cuh"

namespace treadle {

template cudaError_t run_persistent<math::Lstm>(const PersistentForward*, const PersistentCall&);
template cudaError_t run_persistent<math::Lstm>(const PersistentBackward*, const PersistentCall&);

}  // namespace treadle

// GRU's launches of the kernels that plans name.
#include "kernels/math/cells/gru.h"
#include "kernels/recurrent/persistent_launch.cuh"

namespace treadle {

template cudaError_t run_persistent<math::Gru>(const PersistentForward*, const PersistentCall&);
template cudaError_t run_persistent<math::Gru>(const PersistentBackward*, const PersistentCall&);

}  // namespace treadle

// LLTM's launches of the kernels that plans name.
#include "kernels/math/cells/lltm.h"
#include "kernels/recurrent/persistent_launch.cuh"

namespace treadle {

template cudaError_t run_persistent<math::Lltm>(const PersistentForward*, const PersistentCall&);
template cudaError_t run_persistent<math::Lltm>(const PersistentBackward*, const PersistentCall&);

}  // namespace treadle

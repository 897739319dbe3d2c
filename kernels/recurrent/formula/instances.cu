// The launchers of cells that formulas define. The library has no kernels for these cells, because
// they are compiled at run time (function.h). So the launchers are instantiated only when nvcc
// compiles for the host. When it compiles for a GPU, they would take minutes and generate no code.
#include "kernels/recurrent/cluster/backward.cuh"
#include "kernels/recurrent/cluster/dense_launch.cuh"
#include "kernels/recurrent/cluster/fma_launch.cuh"
#include "kernels/recurrent/cluster/forward.cuh"
#include "kernels/recurrent/cluster/fp16x2_forward.cuh"
#include "kernels/recurrent/grid/fp16x2_backward_launch.cuh"
#include "kernels/recurrent/grid/fp16x2_launch.cuh"
#include "kernels/recurrent/grid/half_launch.cuh"
#include "kernels/recurrent/launch.cuh"
#include "kernels/recurrent/scan/c_states.cuh"
#include "kernels/recurrent/step/step.cuh"

namespace treadle {

#define TREADLE_INSTANCES(...)                                                                     \
  template cudaError_t run_persistent<__VA_ARGS__>(const PersistentForward*,                       \
                                                   const PersistentCall&);                         \
  template cudaError_t run_persistent<__VA_ARGS__>(const PersistentBackward*,                      \
                                                   const PersistentCall&);                         \
  template cudaError_t launch_c_states<__VA_ARGS__>(const PersistentCStates&, cudaStream_t);       \
  template cudaError_t launch_step_forward<__VA_ARGS__>(const RecurrenceForward&, cudaStream_t);   \
  template cudaError_t launch_step_backward<__VA_ARGS__>(const RecurrenceBackward&, cudaStream_t); \
  template cudaError_t launch_grouped_forward<__VA_ARGS__>(const RecurrenceForward&,               \
                                                           const StepGroup&, cudaStream_t);        \
  template cudaError_t launch_grouped_backward<__VA_ARGS__>(const RecurrenceBackward&,             \
                                                            const StepGroup&, cudaStream_t);

#define TREADLE_ALL_GATES(c_parts)                   \
  TREADLE_INSTANCES(math::Formula<1, 1, 1, c_parts>) \
  TREADLE_INSTANCES(math::Formula<2, 2, 2, c_parts>) \
  TREADLE_INSTANCES(math::Formula<3, 2, 2, c_parts>) \
  TREADLE_INSTANCES(math::Formula<3, 3, 3, c_parts>) \
  TREADLE_INSTANCES(math::Formula<4, 3, 3, c_parts>) \
  TREADLE_INSTANCES(math::Formula<4, 4, 4, c_parts>)

#ifndef __CUDA_ARCH__
TREADLE_ALL_GATES(1)
TREADLE_ALL_GATES(2)
TREADLE_ALL_GATES(3)
TREADLE_ALL_GATES(4)
#endif
static_assert(kMostCParts == 4);

}  // namespace treadle

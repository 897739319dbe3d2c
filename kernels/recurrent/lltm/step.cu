// lltm_layer's steps on CUDA. Engine: kernels/recurrence.cuh; formula: kernels/math/lltm_cell.h.
// Twin: csrc/cpu/lltm_layer.cpp.
#include "kernels/lltm_layer.h"
#include "kernels/math/lltm_recurrence.h"
#include "kernels/recurrence.cuh"

namespace treadle {

using math::LltmRecurrence;

static LaunchShape launch_shape(const LocateUnit& locate) {
  const auto grid = ceil_div(int64_t{locate.units}, int64_t{kBlockSize});
  return {static_cast<unsigned>(grid), 1, 1, kBlockSize, 0, 1, 1};
}

cudaError_t launch_lltm_step_forward(const RecurrenceForward& args, cudaStream_t stream) {
  return visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const RecurrenceStep step = args.steps[0];
    const LocateUnit locate(step.rows, args.hidden, args.products.column_stride != 1);
    return launch(recurrence_forward<LltmRecurrence, T>, launch_shape(locate), stream, args, step,
                  locate);
  });
}

cudaError_t launch_lltm_step_backward(const RecurrenceBackward& args, cudaStream_t stream) {
  return visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const RecurrenceStep step = args.steps[0];
    const LocateUnit locate(step.rows, args.hidden, args.grad_h.column_stride != 1);
    return launch(recurrence_backward<LltmRecurrence, T>, launch_shape(locate), stream, args, step,
                  locate);
  });
}

}  // namespace treadle

// lltm_layer's steps on CUDA. Engine: kernels/recurrence.cuh; formula: kernels/math/lltm_cell.h.
// Twin: csrc/cpu/lltm_layer.cpp.
#include "kernels/lltm_layer.h"
#include "kernels/math/lltm_recurrence.h"
#include "kernels/recurrence.cuh"

namespace treadle {

using math::LltmRecurrence;

static LaunchShape launch_shape(const LocateUnit& locate, int64_t steps) {
  const auto grid = ceil_div(int64_t{locate.units}, int64_t{kBlockSize});
  return {static_cast<unsigned>(grid), 1, 1, kBlockSize, 0, 1, static_cast<int>(steps)};
}

cudaError_t launch_lltm_step_forward(const RecurrenceForward& args, cudaStream_t stream) {
  return visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const RecurrenceStep step = args.steps[0];
    const LocateUnit locate(step.rows, args.hidden, args.products.column_stride != 1);
    return launch(recurrence_forward<LltmRecurrence, T>, launch_shape(locate, 1), stream, args,
                  step, locate);
  });
}

cudaError_t launch_lltm_step_backward(const RecurrenceBackward& args, cudaStream_t stream) {
  return visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const RecurrenceStep step = args.steps[0];
    const LocateUnit locate(step.rows, args.hidden, args.grad_h.column_stride != 1);
    return launch(recurrence_backward<LltmRecurrence, T>, launch_shape(locate, 1), stream, args,
                  step, locate);
  });
}

cudaError_t launch_lltm_cells(const RecurrenceCells& args, cudaStream_t stream) {
  return visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    int64_t begin = 0;
    while (begin < args.step_count) {
      // Steps of as many rows as this one, which lie at one distance.
      const RecurrenceStep& first = args.steps[begin];
      int64_t end = begin + 1;
      while (end < args.step_count && args.steps[end].rows == first.rows) ++end;
      const int64_t stride = end > begin + 1 ? args.steps[begin + 1].start - first.start : 0;
      const LocateUnit locate(first.rows, args.hidden, false);
      if (locate.units > 0) {
        const cudaError_t error =
            launch(recurrence_cells<LltmRecurrence, T>, launch_shape(locate, end - begin), stream,
                   args, first, stride, end - begin, locate);
        if (error != cudaSuccess) return error;
      }
      begin = end;
    }
    return cudaSuccess;
  });
}

}  // namespace treadle

// lltm_layer's regime "grid". Engine: kernels/grid.cuh.
#include "kernels/grid_launch.cuh"
#include "kernels/lltm_persistent.h"
#include "kernels/math/lltm_recurrence.h"

namespace treadle {

using math::LltmRecurrence;
using math::LltmRecurrenceOfHalves;

static constexpr int kGates = LltmRecurrence<float>::kGates;

static cudaError_t run(const PersistentForward* args, const GridCall& call) {
  return call.sizes.dtype == Dtype::kHalf
             ? run_grid_forward<LltmRecurrenceOfHalves, Half>(args, call)
             : run_grid_forward<LltmRecurrenceOfHalves, BFloat16>(args, call);
}

static cudaError_t run(const PersistentBackward* args, const GridCall& call) {
  return call.sizes.dtype == Dtype::kHalf ? run_grid_backward<LltmRecurrence, Half>(args, call)
                                          : run_grid_backward<LltmRecurrence, BFloat16>(args, call);
}

cudaError_t launch_lltm_grid_forward(const PersistentForward& args, int rows, cudaStream_t stream) {
  return run(&args, {args.sizes, rows, stream, nullptr});
}

cudaError_t launch_lltm_grid_backward(const PersistentBackward& args, int rows,
                                      cudaStream_t stream) {
  return run(&args, {args.sizes, rows, stream, nullptr});
}

cudaError_t lltm_grid_fits(bool backward, const PersistentSizes& sizes, int rows, bool* fits) {
  const GridCall call = {sizes, rows, nullptr, fits};
  return backward ? run(static_cast<const PersistentBackward*>(nullptr), call)
                  : run(static_cast<const PersistentForward*>(nullptr), call);
}

size_t lltm_grid_exchange_bytes(const PersistentSizes& sizes, int rows, bool backward) {
  return grid_exchange_bytes(sizes, rows, backward ? kGridBackwardTile<kGates> : kGridForwardTile);
}

}  // namespace treadle

// Launches the grid kernels, for any cell. Defines the grid functions of cell_launchers.h.
#pragma once

#include "kernels/recurrent/cell_launchers.h"
#include "kernels/recurrent/grid/call.cuh"

namespace treadle {

// Calls f(constant), true where layouts with setmaxnreg run.
template <class F>
cudaError_t visit_setmaxnreg(const GridCall& call, const F& f) {
  return call.sizes.setmaxnreg ? f(Constant<bool, true>{}) : f(Constant<bool, false>{});
}

template <class Kind>
cudaError_t run_grid(const PersistentForward* args, const GridCall& call) {
  return visit_setmaxnreg(call, [&](auto setmaxnreg) {
    constexpr bool kSetmaxnreg = decltype(setmaxnreg)::value;
    if (call.sizes.dtype == Dtype::kFloat) return run_grid_split<Kind, kSetmaxnreg>(args, call);
    if (call.sizes.hidden > kGridHidden) return run_grid_h2048<Kind, kSetmaxnreg>(args, call);
    return run_grid_half<Kind, kSetmaxnreg>(args, call);
  });
}

template <class Kind>
cudaError_t run_grid(const PersistentBackward* args, const GridCall& call) {
  return visit_setmaxnreg(call, [&](auto setmaxnreg) {
    constexpr bool kSetmaxnreg = decltype(setmaxnreg)::value;
    if (call.sizes.dtype == Dtype::kFloat) return run_grid_split<Kind, kSetmaxnreg>(args, call);
    return run_grid_half<Kind, kSetmaxnreg>(args, call);
  });
}

template <class Kind>
cudaError_t launch_grid_forward(const PersistentForward& args, int rows, cudaStream_t stream) {
  return run_grid<Kind>(&args, {args.sizes, rows, stream, nullptr});
}

template <class Kind>
cudaError_t launch_grid_backward(const PersistentBackward& args, int rows, cudaStream_t stream) {
  return run_grid<Kind>(&args, {args.sizes, rows, stream, nullptr});
}

template <class Kind>
cudaError_t grid_fits(bool backward, const PersistentSizes& sizes, int rows, bool* fits) {
  const GridCall call = {sizes, rows, nullptr, fits};
  return backward ? run_grid<Kind>(static_cast<const PersistentBackward*>(nullptr), call)
                  : run_grid<Kind>(static_cast<const PersistentForward*>(nullptr), call);
}

}  // namespace treadle

// Launches the grid kernels in half types, for any cell. grid/call.cuh declares run_grid_half() and
// run_grid_h2048().
#pragma once

#include "kernels/recurrent/grid/call.cuh"
#include "kernels/recurrent/grid/kernels.cuh"

namespace treadle {

template <class Cell, class T, class Layout, int late>
cudaError_t run_grid_of(const PersistentForward* args, const GridCall& call) {
  const auto kernel = TREADLE_RESETS_FUNCTION(PersistentKernel<PersistentForward>, call.plan.resets,
                                              grid_forward, (Cell, T, Layout), (resets, late));
  return call.of<Layout>(kernel, args);
}

template <class Cell, class T, class Layout, int late>
cudaError_t run_grid_of(const PersistentBackward* args, const GridCall& call) {
  const auto kernel =
      TREADLE_RESETS_FUNCTION(PersistentKernel<PersistentBackward>, call.plan.resets, grid_backward,
                              (Cell, T, Layout), (resets, late));
  return call.of<Layout>(kernel, args);
}

template <class F>
cudaError_t with_half_type(const GridCall& call, const F& f) {
  return call.sizes.dtype == Dtype::kHalf ? f(Type<Half>{}) : f(Type<BFloat16>{});
}

template <class Kind, bool setmaxnreg>
cudaError_t run_grid_half(const PersistentForward* args, const GridCall& call) {
  using Cell = typename Kind::template HalfCell<float>;
  return with_half_type(call, [&](auto type) {
    using T = typename decltype(type)::type;
    return with_grid_width<setmaxnreg>(call.sizes.hidden, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      using Layout =
          GridForward<Cell::kGates, Cell::kStateGates, kWidth, setmaxnreg, Cell::kCParts>;
      // On GPUs with setmaxnreg, clusters usually compute batches of a single tile up to h512. So a
      // single tile has no kernel of its own there, and uses the kernel for three or more tiles.
      constexpr int kLatest = setmaxnreg && kWidth == kGridNarrowHidden ? 0 : 2;
      // Without setmaxnreg, two tiles use the kernel for three or more tiles. This saves a third of
      // the kernels.
      constexpr int kTwo = setmaxnreg ? 1 : 0;
      return call.plan.rows == 8    ? run_grid_of<Cell, T, Layout, kLatest>(args, call)
             : call.plan.rows == 16 ? run_grid_of<Cell, T, Layout, kTwo>(args, call)
                                    : run_grid_of<Cell, T, Layout, 0>(args, call);
    });
  });
}

template <class Kind, bool setmaxnreg>
cudaError_t run_grid_half(const PersistentBackward* args, const GridCall& call) {
  using Cell = typename Kind::template Cell<float>;
  return with_half_type(call, [&](auto type) {
    using T = typename decltype(type)::type;
    return with_grid_width<setmaxnreg>(call.sizes.hidden, [&](auto width) {
      using Layout = GridBackward<Cell::kGates, Cell::kStateGates, decltype(width)::value,
                                  setmaxnreg, Cell::kCParts>;
      constexpr int kTwo = setmaxnreg ? 1 : 0;  // as in the forward pass
      return call.plan.rows == 8    ? run_grid_of<Cell, T, Layout, 2>(args, call)
             : call.plan.rows == 16 ? run_grid_of<Cell, T, Layout, kTwo>(args, call)
                                    : run_grid_of<Cell, T, Layout, 0>(args, call);
    });
  });
}

template <class Kind, bool setmaxnreg>
cudaError_t run_grid_h2048(const PersistentForward* args, const GridCall& call) {
  using Cell = typename Kind::template HalfCell<float>;
  using Layout =
      GridForward<Cell::kGates, Cell::kStateGates, kGridWideHidden, setmaxnreg, Cell::kCParts>;
  return with_half_type(call, [&](auto type) {
    using T = typename decltype(type)::type;
    return call.plan.rows == 8 ? run_grid_of<Cell, T, Layout, 2>(args, call)
                               : run_grid_of<Cell, T, Layout, 0>(args, call);
  });
}

}  // namespace treadle

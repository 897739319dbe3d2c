// Launches the forward grid kernels in float32, for any cell. grid/call.cuh declares
// run_grid_split().
#pragma once

#include "kernels/recurrent/grid/call.cuh"
#include "kernels/recurrent/grid/kernels.cuh"

namespace treadle {

template <class Kind, bool setmaxnreg>
cudaError_t run_grid_split(const PersistentForward* args, const GridCall& call) {
  using Cell = typename Kind::template Cell<float>;
  const auto of = [&](auto width, auto words) {
    using Layout = GridSplit<Cell::kGates, Cell::kStateGates, decltype(width)::value,
                             decltype(words)::value, setmaxnreg, Cell::kCParts>;
    const auto run = [&](auto alone) {
      constexpr bool kAlone = decltype(alone)::value;
      const auto kernel =
          TREADLE_RESETS_FUNCTION(PersistentKernel<PersistentForward>, call.plan.resets,
                                  grid_split_forward, (Cell, Layout), (resets, kAlone));
      return call.of<Layout>(kernel, args);
    };
    return call.plan.rows == 8 ? run(Constant<bool, true>{}) : run(Constant<bool, false>{});
  };
  if constexpr (setmaxnreg) {
    if (call.sizes.hidden > kGridHidden) {
      return of(Constant<int, kGridWideHidden>{}, Constant<int, 1>{});
    }
  }
  return with_grid_width<setmaxnreg>(call.sizes.hidden, [&](auto width) {
    return call.plan.tf32 ? of(width, Constant<int, 1>{}) : of(width, Constant<int, 2>{});
  });
}

}  // namespace treadle

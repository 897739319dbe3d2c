// The launch of grid kernels in float32, for any cell. Defines what grid_launch.cuh declares of
// them.
#pragma once

#include "kernels/recurrent/grid_launch.cuh"
#include "kernels/recurrent/grid_split_forward.cuh"

namespace treadle {

template <class Kind>
cudaError_t run_grid_split(const PersistentForward* args, const GridCall& call) {
  using Cell = typename Kind::template Cell<float>;
  const auto of = [&](auto layout, auto alone) {
    using Layout = typename decltype(layout)::type;
    constexpr bool kAlone = decltype(alone)::value;
    return call.of<Layout>(any_resets(args) ? grid_split_forward<Cell, Layout, true, kAlone>
                                            : grid_split_forward<Cell, Layout, false, kAlone>,
                           args);
  };
  const auto run = [&](auto layout) {
    return call.rows == 8 ? of(layout, std::true_type{}) : of(layout, std::false_type{});
  };
  constexpr int kGates = Cell::kGates, kStateGates = Cell::kStateGates;
  return call.sizes.hidden > kGridNarrowHidden
             ? run(Type<GridSplit<kGates, kStateGates, kGridHidden>>{})
             : run(Type<GridSplit<kGates, kStateGates, kGridNarrowHidden>>{});
}

}  // namespace treadle

// The launch of grid kernels in float32, backward, for any cell. Defines what grid_launch.cuh
// declares of them.
#pragma once

#include "kernels/recurrent/grid_launch.cuh"
#include "kernels/recurrent/grid_split_backward.cuh"

namespace treadle {

template <class Kind>
cudaError_t run_grid_split(const PersistentBackward* args, const GridCall& call) {
  using Cell = typename Kind::template Cell<float>;
  return with_split_backward<Cell>(call.sizes, [&](auto layout) {
    using Layout = typename decltype(layout)::type;
    const auto run = [&](auto alone) {
      constexpr bool kAlone = decltype(alone)::value;
      return call.of<Layout>(any_resets(args) ? grid_split_backward<Cell, Layout, true, kAlone>
                                              : grid_split_backward<Cell, Layout, false, kAlone>,
                             args);
    };
    return call.rows == 8 ? run(std::true_type{}) : run(std::false_type{});
  });
}

}  // namespace treadle

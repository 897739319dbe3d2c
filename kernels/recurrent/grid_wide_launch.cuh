// The launch of grid kernels forward for H beyond kGridHidden, for any cell. Defines what
// grid_launch.cuh declares of them.
#pragma once

#include "kernels/recurrent/grid_launch.cuh"

namespace treadle {

template <class Kind>
cudaError_t run_grid_wide(const PersistentForward* args, const GridCall& call) {
  using Cell = typename Kind::template HalfCell<float>;
  const auto run = [&](auto type) {
    using T = typename decltype(type)::type;
    return call.rows == 8 ? run_grid_of<Cell, T, kGridWideHidden, 2>(args, call)
                          : run_grid_of<Cell, T, kGridWideHidden, 0>(args, call);
  };
  return call.sizes.dtype == Dtype::kHalf ? run(Type<Half>{}) : run(Type<BFloat16>{});
}

}  // namespace treadle

// Dispatches from the cell that the arguments name to that cell's launchers.
#include "kernels/common/launch.cuh"
#include "kernels/common/tma.cuh"
#include "kernels/recurrent/cell_launchers.h"
#include "kernels/recurrent/engine/shapes.h"
#include "kernels/recurrent/launchers.h"
#include "kernels/recurrent/step/step_group.h"

namespace treadle {
cudaError_t launch_step_forward(const RecurrenceForward& args, cudaStream_t stream) {
  return visit_cell(args.cell, [&](auto cell) {
    return launch_step_forward<typename decltype(cell)::type>(args, stream);
  });
}

cudaError_t launch_step_backward(const RecurrenceBackward& args, cudaStream_t stream) {
  return visit_cell(args.cell, [&](auto cell) {
    return launch_step_backward<typename decltype(cell)::type>(args, stream);
  });
}

cudaError_t launch_grouped_forward(const RecurrenceForward& args, const StepGroup& group,
                                   cudaStream_t stream) {
  return visit_cell(args.cell, [&](auto cell) {
    return launch_grouped_forward<typename decltype(cell)::type>(args, group, stream);
  });
}

cudaError_t launch_grouped_backward(const RecurrenceBackward& args, const StepGroup& group,
                                    cudaStream_t stream) {
  return visit_cell(args.cell, [&](auto cell) {
    return launch_grouped_backward<typename decltype(cell)::type>(args, group, stream);
  });
}

cudaError_t launch_warp_forward(const FusedForward& args, cudaStream_t stream) {
  return visit_cell(args.layer.cell, [&](auto cell) {
    return launch_warp_forward<typename decltype(cell)::type>(args, stream);
  });
}

cudaError_t launch_tiles_forward(const FusedForward& args, int processors, cudaStream_t stream) {
  return visit_cell(args.layer.cell, [&](auto cell) {
    return launch_tiles_forward<typename decltype(cell)::type>(args, processors, stream);
  });
}

bool tiles_supported() { return compiled_for(900) && find_encode_map() != nullptr; }

cudaError_t launch_cluster_forward(const PersistentForward& args, const ClusterPlan& plan,
                                   cudaStream_t stream) {
  return visit_cell(args.sizes.cell, [&](auto cell) {
    return launch_cluster_forward<typename decltype(cell)::type>(args, plan, stream);
  });
}

cudaError_t launch_cluster_backward(const PersistentBackward& args, const ClusterPlan& plan,
                                    cudaStream_t stream) {
  return visit_cell(args.sizes.cell, [&](auto cell) {
    return launch_cluster_backward<typename decltype(cell)::type>(args, plan, stream);
  });
}

cudaError_t clusters_at_once(CellKind cell, Dtype dtype, bool backward, const ClusterPlan& plan,
                             int* count) {
  return visit_cell(cell, [&](auto type) {
    using Kind = typename decltype(type)::type;
    return backward ? backward_clusters_at_once<Kind>(dtype, plan, count)
                    : forward_clusters_at_once<Kind>(dtype, plan, count);
  });
}

cudaError_t launch_grid_forward(const PersistentForward& args, int rows, cudaStream_t stream) {
  return visit_cell(args.sizes.cell, [&](auto cell) {
    return launch_grid_forward<typename decltype(cell)::type>(args, rows, stream);
  });
}

cudaError_t launch_grid_backward(const PersistentBackward& args, int rows, cudaStream_t stream) {
  return visit_cell(args.sizes.cell, [&](auto cell) {
    return launch_grid_backward<typename decltype(cell)::type>(args, rows, stream);
  });
}

cudaError_t grid_fits(bool backward, const PersistentSizes& sizes, int rows, bool* fits) {
  return visit_cell(sizes.cell, [&](auto cell) {
    return grid_fits<typename decltype(cell)::type>(backward, sizes, rows, fits);
  });
}

size_t grid_exchange_bytes(const PersistentSizes& sizes, int rows, bool backward) {
  const CellInfo& cell = cell_info(sizes.cell);
  const GridShape& shape =
      cell_shapes(cell.gates, cell.state_gates)
          .grid_of(sizes.dtype, sizes.hidden, sizes.tf32, sizes.setmaxnreg, backward);
  const size_t steps = kGridRing + (backward ? 0 : 1);
  return steps * grid_groups(sizes, rows) * (rows / 8) * shape.tile_bytes;
}

cudaError_t launch_c_states(const PersistentCStates& args, cudaStream_t stream) {
  return visit_cell(args.sizes.cell, [&](auto cell) {
    return launch_c_states<typename decltype(cell)::type>(args, stream);
  });
}

}  // namespace treadle

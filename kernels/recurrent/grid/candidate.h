// The planner's candidate for algorithm "grid": the number of RowGroups, the number of rows that
// each of them computes, and the number of directions that run at once. A RowGroup consists of the
// blocks that together keep one copy of W_hh.
#pragma once

#include <algorithm>

#include "kernels/recurrent/plan/candidate.h"

namespace treadle::plans {

inline constexpr int64_t kGridFromHidden = 256;  // H above which the grid competes with clusters

inline const GridShape& grid_shape_of(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                                      bool backward) {
  const CellInfo& cell = cell_info(sizes.cell);
  return cell_shapes(cell.gates, cell.state_gates, cell.c_parts)
      .grid_of(sizes.dtype, sizes.hidden, device.tf32, device.setmaxnreg(), backward);
}

// The most rows of a RowGroup, or 0 if a block has too little shared memory.
inline int most_rows(const RecurrenceSizes& sizes, const RecurrenceDevice& device, bool backward) {
  return grid_shape_of(sizes, device, backward).rows(static_cast<int64_t>(device.shared_bytes));
}

// How a layer is divided among launches and RowGroups, with one block per multiprocessor.
struct GridDivision {
  int64_t directions = 0;  // per launch; 0: the GPU has too few multiprocessors for one direction
  int64_t groups = 0;      // RowGroups of each direction in a launch
  int rows = 0;            // of a RowGroup, in whole tiles of 8
  int64_t launches = 0;

  GridDivision(const RecurrenceSizes& sizes, int64_t at_once, int most_rows) {
    if (at_once == 0 || most_rows == 0) return;
    const int64_t all = std::max<int64_t>(sizes.directions, 1);
    const int64_t of_directions = ceil_div(all, at_once);
    directions = ceil_div(all, of_directions);
    groups = at_once / directions;
    const int64_t of_rows = std::max<int64_t>(ceil_div(sizes.batch, groups * most_rows), 1);
    const int64_t each = std::max<int64_t>(ceil_div(sizes.batch, groups * of_rows), 1);
    rows = static_cast<int>(ceil_div(each, 8) * 8);
    launches = of_directions * of_rows;
  }
};

inline GridDivision grid_division(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                                  bool backward) {
  return {sizes, device.multiprocessors / grid_shape_of(sizes, device, backward).blocks,
          most_rows(sizes, device, backward)};
}

// The largest H that any grid kernel supports, or 0 if none supports the dtype.
inline int64_t most_hidden_of_grid(const RecurrenceDevice& device, Dtype dtype, bool backward) {
  if (dtype != Dtype::kFloat && !is_half(dtype)) return 0;
  const bool wide = is_half(dtype) || (device.tf32 && device.setmaxnreg());
  return wide && !backward ? kGridWideHidden : kGridHidden;
}

inline KernelId grid_kernel(const RecurrenceSizes& sizes) {
  if (!is_half(sizes.dtype)) return KernelId::kGridFp16x2;
  return sizes.hidden > kGridHidden ? KernelId::kGridH2048 : KernelId::kGridHalf;
}

// The bytes of a RowGroup's exchange: its tiles in a ring of kGridRing slots and, in the forward
// pass, the states before the first step.
inline size_t group_bytes(const GridShape& shape, int rows, bool backward) {
  const int steps = kGridRing + (backward ? 0 : 1);
  return static_cast<size_t>(steps) * static_cast<size_t>(rows / 8) *
         static_cast<size_t>(shape.tile_bytes);
}

inline Candidate grid_candidate(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                                bool backward) {
  Candidate found;
  if (!on_chip(sizes, device, most_hidden_of_grid(device, sizes.dtype, backward))) return found;
  const GridDivision division = grid_division(sizes, device, backward);
  found.exists = division.directions > 0;
  if (!found.exists) return found;
  RecurrencePlan& plan = found.plan;
  plan.kernel = grid_kernel(sizes);
  plan.reason = "the blocks of the grid keep the weights on the chip";
  plan.rows = division.rows;
  plan.groups = division.groups;
  plan.directions = division.directions;
  plan.setmaxnreg = device.setmaxnreg();
  plan.group_bytes = group_bytes(grid_shape_of(sizes, device, backward), plan.rows, backward);
  // For small H, clusters are preferred whatever the estimated time of the grid is, because the
  // estimates for clusters are more accurate. The exception is float32 in the backward pass, and
  // for ragged batches of a cell whose h can grow. There clusters multiply by fma, and are slower
  // than the grid.
  const bool small =
      device.clusters() && sizes.hidden <= kGridFromHidden && in_clusters(sizes, backward);
  const bool by_fma =
      !is_half(sizes.dtype) && (backward || (sizes.ragged() && h_grows(sizes.cell)));
  if (!small || by_fma) {
    found.time = slower(device) * grid_time(division.launches, plan.rows, sizes, device, backward);
  }
  return found;
}

}  // namespace treadle::plans

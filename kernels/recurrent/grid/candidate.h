// The planner's candidate for algorithm "grid": the number of RowGroups, and the number of rows
// that each of them computes. A RowGroup consists of the blocks that together keep one copy of
// W_hh.
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

// The number of RowGroups of each direction, with one block per multiprocessor.
inline int64_t row_groups(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                          bool backward) {
  return device.multiprocessors / grid_shape_of(sizes, device, backward).blocks /
         std::max<int64_t>(sizes.directions, 1);
}

inline int64_t grid_launches(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                             bool backward) {
  const int64_t at_once = row_groups(sizes, device, backward) * most_rows(sizes, device, backward);
  return std::max<int64_t>(ceil_div(sizes.batch, at_once), 1);
}

// The rows of each RowGroup, in whole tiles of 8.
inline int rows_of_group(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                         bool backward) {
  const int64_t at_once =
      row_groups(sizes, device, backward) * grid_launches(sizes, device, backward);
  const int64_t rows = std::max<int64_t>(ceil_div(sizes.batch, at_once), 1);
  return static_cast<int>(ceil_div(rows, 8) * 8);
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
  found.exists = on_chip(sizes, device, most_hidden_of_grid(device, sizes.dtype, backward)) &&
                 row_groups(sizes, device, backward) > 0 && most_rows(sizes, device, backward) > 0;
  if (!found.exists) return found;
  RecurrencePlan& plan = found.plan;
  plan.kernel = grid_kernel(sizes);
  plan.reason = "the blocks of the grid keep the weights on the chip";
  plan.rows = rows_of_group(sizes, device, backward);
  plan.groups = row_groups(sizes, device, backward);
  plan.setmaxnreg = device.setmaxnreg();
  plan.group_bytes = group_bytes(grid_shape_of(sizes, device, backward), plan.rows, backward);
  // For small H, clusters are preferred whatever the estimated time of the grid is, because the
  // estimates for clusters are more accurate. The exception is float32 in the backward pass and for
  // ragged batches. There clusters multiply by fma, and are slower than the grid.
  const bool small =
      device.clusters() && sizes.hidden <= kGridFromHidden && in_clusters(sizes, backward);
  const bool by_fma = !is_half(sizes.dtype) && (backward || sizes.ragged());
  if (!small || by_fma) {
    const int64_t launches = grid_launches(sizes, device, backward);
    found.time = slower(device) * grid_time(launches, plan.rows, sizes, device, backward);
  }
  return found;
}

}  // namespace treadle::plans

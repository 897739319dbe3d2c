// The planner's grids (plan/plan.cpp): their blocks and rows.
#pragma once

#include <algorithm>

#include "kernels/recurrent/plan/times.h"

// Separate namespace: the kernels define functions of the same names.
namespace treadle::plan_grids {

using plan_times::ceil_div;

inline const CellShapes& shapes_of(const RecurrenceSizes& sizes) {
  const CellInfo& cell = cell_info(sizes.cell);
  return cell_shapes(cell.gates, cell.state_gates);
}

inline const GridShape& grid_shape_of(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                                      bool backward) {
  return shapes_of(sizes).grid_of(sizes.dtype, sizes.hidden, device.tf32, device.setmaxnreg(),
                                  backward);
}

// The most rows of a group of blocks; 0: a block has too little shared memory.
inline int most_rows(const RecurrenceSizes& sizes, const RecurrenceDevice& device, bool backward) {
  return grid_shape_of(sizes, device, backward).rows(static_cast<int64_t>(device.shared_bytes));
}

// Groups for each direction, with one block per multiprocessor.
inline int64_t grid_groups(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                           bool backward) {
  return device.multiprocessors / grid_shape_of(sizes, device, backward).blocks /
         std::max<int64_t>(sizes.directions, 1);
}

inline bool any_grid(const RecurrenceSizes& sizes, const RecurrenceDevice& device, bool backward) {
  return grid_groups(sizes, device, backward) > 0 && most_rows(sizes, device, backward) > 0;
}

inline int64_t grid_launches(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                             bool backward) {
  const int64_t at_once = grid_groups(sizes, device, backward) * most_rows(sizes, device, backward);
  return std::max<int64_t>(ceil_div(sizes.batch, at_once), 1);
}

// Rows a group of blocks, in tiles of 8.
inline int plan_grid(const RecurrenceSizes& sizes, const RecurrenceDevice& device, bool backward) {
  const int64_t at_once =
      grid_groups(sizes, device, backward) * grid_launches(sizes, device, backward);
  const int64_t rows = std::max<int64_t>(ceil_div(sizes.batch, at_once), 1);
  return static_cast<int>(ceil_div(rows, 8) * 8);
}

}  // namespace treadle::plan_grids

// What the planner (plan.cpp) makes of a grid: how many blocks, which rows.
#pragma once

#include <algorithm>

#include "kernels/recurrent/plan_times.h"

// Of their own, since kernels have other functions of such names.
namespace treadle::plan_grids {

using plan_times::ceil_div;

inline const CellShapes& shapes_of(const RecurrenceSizes& sizes) {
  const CellInfo& cell = cell_info(sizes.cell);
  return cell_shapes(cell.gates, cell.state_gates);
}

// Of the grid, whose forward pass then takes twice as many blocks; backward has no such kernel.
inline bool is_wide(const RecurrenceSizes& sizes) { return sizes.hidden > kGridHidden; }

// Whether the grid has no backward pass of such a layer.
inline bool forward_alone(const RecurrenceSizes& sizes) { return is_wide(sizes); }

// The backward pass in float32: the layouts of up to kGridNarrowHidden and beyond, exact and in
// TF32.
inline const GridSplitShape& split_shape(const RecurrenceSizes& sizes, bool tf32) {
  return shapes_of(sizes).grid_split_backward[sizes.hidden > kGridNarrowHidden][tf32];
}

// Blocks of a group of the grid.
inline int64_t grid_blocks(const RecurrenceSizes& sizes, bool tf32, bool backward) {
  if (backward && !is_half(sizes.dtype)) return split_shape(sizes, tf32).blocks;
  if (backward) return GridBackward<3, 3>::kBlocks;
  return is_wide(sizes) ? GridForward<3, 3, kGridWideHidden>::kBlocks
                        : GridForward<3, 3, kGridHidden>::kBlocks;  // of float32, too
}

// Groups for each direction, one block a multiprocessor.
inline int64_t grid_groups(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                           bool backward) {
  return device.multiprocessors / grid_blocks(sizes, device.tf32, backward) /
         std::max<int64_t>(sizes.directions, 1);
}

// The most rows of a group of blocks.
inline int64_t grid_rows(const RecurrenceSizes& sizes, bool tf32, bool backward) {
  const CellShapes& shapes = shapes_of(sizes);
  if (backward && !is_half(sizes.dtype)) return split_shape(sizes, tf32).rows;
  if (backward) return shapes.grid_rows_backward;
  if (!is_half(sizes.dtype)) return shapes.grid_rows_split;
  return is_wide(sizes) ? shapes.grid_rows_wide : shapes.grid_rows;
}

inline int64_t grid_launches(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                             bool backward) {
  const int64_t at_once =
      grid_groups(sizes, device, backward) * grid_rows(sizes, device.tf32, backward);
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

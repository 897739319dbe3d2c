// The list of cluster kernels. It contains exactly the kernels that the planner selects for some
// layer on some GPU (tests/recurrent/plan/test_plan_kernels.py). This header needs neither torch
// nor CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#ifndef __CUDACC_RTC__
#include <array>
#include <initializer_list>
#endif

#include "kernels/recurrent/cell_info.h"

namespace treadle {

// A single block computes up to this many rows, with a thread for each unit of each row.
inline constexpr int kBlockRows = 2;

// The most units of a single block in half types on GPUs with clusters. For more units, clusters
// are faster, because they multiply on tensor cores. A single block holds the weights as floats in
// registers, as in float32.
inline constexpr int kHalfBlockUnits = 64;

// The shape of a cluster kernel: each of the `blocks` blocks of a cluster keeps the weights of
// `units` hidden units, and a cluster computes all steps of up to rows() rows of the batch.
struct ClusterShape {
  int units, blocks, tiles;

  constexpr int64_t hidden() const { return int64_t{units} * blocks; }  // the largest H
  // In clusters of several blocks a tile has 8 rows.
  constexpr int rows() const { return blocks == 1 ? kBlockRows : 8 * tiles; }
};

constexpr bool operator==(const ClusterShape& a, const ClusterShape& b) {
  return a.units == b.units && a.blocks == b.blocks && a.tiles == b.tiles;
}

#ifndef __CUDACC_RTC__

// A set of row counts, each of which has its own kernel. Any other count uses the kernel of the
// next larger one, which computes a few unused rows.
struct RowCounts {
  unsigned bits = 0;

  constexpr RowCounts() = default;
  constexpr explicit RowCounts(unsigned bits) : bits(bits) {}
  constexpr RowCounts(std::initializer_list<int> counts) {
    for (const int count : counts) bits |= 1u << count;
  }

  static constexpr int kMost = 16;
  constexpr bool has(int rows) const { return (bits >> rows & 1) != 0; }
  // The smallest count that is at least `rows`; 0 if there is none.
  constexpr int at_least(int rows) const {
    while (rows <= kMost && !has(rows)) ++rows;
    return rows <= kMost ? rows : 0;
  }
  constexpr int most() const {
    int rows = kMost;
    while (rows > 0 && !has(rows)) --rows;
    return rows;
  }
  constexpr size_t size() const {
    size_t counts = 0;
    for (int rows = 1; rows <= kMost; ++rows) counts += has(rows) ? 1 : 0;
    return counts;
  }
  // The k-th smallest count; k < size().
  constexpr int get(size_t k) const {
    int rows = at_least(1);
    for (; k > 0; --k) rows = at_least(rows + 1);
    return rows;
  }
};

// The kernels of a shape.
struct ShapeKernels {
  bool half_forward = false, half_backward = false;  // in half types, for any batch
  bool fp32_backward = false;                        // in float32 by fma, for any batch
  // Kernels for dense batches without resets. `dense_forward` and `dense_backward` are for half
  // types if H is a multiple of 8, and count the rows of a tile (cluster/dense.h). `split_dense` is
  // for the forward pass in float32, and counts the rows of a cluster (cluster/fp16x2.h).
  RowCounts dense_forward = {}, dense_backward = {}, split_dense = {};
  // The same for dense batches with resets, in half types, if takes_dense_resets() is true.
  RowCounts resets_forward = {}, resets_backward = {};
  // The same for packed batches and batches with resets, in float32.
  RowCounts split_ragged = {};
  bool fp32_forward = false;  // in float32 by fma, for any batch; kernels_of() determines it

  constexpr const RowCounts& dense(bool backward, bool resets) const {
    if (resets) return backward ? resets_backward : resets_forward;
    return backward ? dense_backward : dense_forward;
  }
  constexpr const RowCounts& split(bool ragged) const {
    return ragged ? split_ragged : split_dense;
  }
};

// Whether a cell with this many gates and parts of c has dense kernels with resets. Of the cells
// with one part, only those with four gates have them, such as LSTM and GRU. LLTM, which has three,
// uses the kernels for any batch if rows reset. Dense kernels for this case are not worthwhile,
// because torch has no LLTM layer to compare with.
constexpr bool takes_dense_resets(int gates, int c_parts) { return gates == 4 || c_parts > 1; }

// The kernels of a shape. `one` is for cells in which one gate has a product with h, `three` for
// cells with two or three such gates, and `four` for cells with four. RNN has one, LLTM and GRU
// three, LSTM four.
struct ClusterKernels {
  ClusterShape shape;
  ShapeKernels one, three, four;
};

inline constexpr ClusterKernels kClusterKernels[] = {
    // Single blocks. In half types, those with more than kHalfBlockUnits units are for GPUs without
    // clusters. With three gates, the block of 128 units has no backward kernel in half types,
    // because the grid is faster: with the A100's kernels on an H200, a step of a GRU with B 8 and
    // H 128 took 1.22 us on the grid and 1.33 us in a block.
    {{32, 1, 1}, {true, true, true}, {true, true, true}, {true, true, true}},
    {{64, 1, 1}, {true, true, true}, {true, true, true}, {true, true, true}},
    {{96, 1, 1}, {true, true, true}, {true, true, true}, {true, true, true}},
    {{128, 1, 1}, {true, true, true}, {true, false, true}, {}},
    // Up to H 128. Half types use {16, 8} where float32 uses {32, 4}.
    {{16, 4, 1}, {true, true}, {true, true}, {true, true}},
    {{16, 4, 2}, {true}, {true}, {true}},
    {{16, 8, 1},
     {true, true, false, {}, {8}},
     {true, true, false, {}, {2, 4, 8}},
     {true, true, false, {}, {2, 4, 8}}},
    {{16, 8, 2}, {true}, {true}, {true}},
    {{32, 4, 1}, {}, {}, {false, false, true}},
    // Up to H 256. In float32, 16 blocks are fastest for few rows. With 8 blocks per cluster, more
    // clusters run at once, so larger batches still fit in one wave.
    {{16, 16, 1},
     {true, true, true, {}, {4}},
     {true, true, true, {}, {2, 4, 8}, {}, {}, {2, 4}},
     {true, true, true, {}, {2, 4, 8}, {}, {}, {2, 4}}},
    {{16, 16, 2}, {}, {true}, {true}},
    {{64, 4, 1},
     {true, true, false, {2, 8}, {4, 8}},
     {true, true, false, {2, 5, 8}, {2, 4, 8}, {}, {5, 8}, {8}},
     {true, true, false, {2, 5, 8}, {2, 4, 8}, {}, {5, 8}, {8}}},
    {{64, 4, 2},
     {true, false, false, {8}},
     {true, false, false, {5, 8}, {5}, {}, {5, 8}},
     {true, false, false, {5, 8}, {5}, {}, {5, 8}}},
    {{32, 8, 1},
     {true, true, true, {2, 8}, {4}, {4, 10}, {}, {}, {4, 10}},
     {true, true, true, {2, 5, 8}, {2, 4, 8}, {2, 4, 6, 8, 10}, {2, 5, 8}, {4, 8}, {2, 4, 8, 10}},
     {true, true, true, {2, 5, 8}, {2, 4, 8}, {2, 4, 6, 8, 10}, {2, 5, 8}, {4, 8}, {2, 4, 8, 10}}},
    // Up to H 512. Above H 256, LSTM has no kernels for any batch, and the other cells have them in
    // one shape, because the grid is about as fast for such batches
    // (docs/dev/findings/the_grid_replaces_general_clusters_above_h256.md).
    {{32, 16, 1},
     {true, true, true, {1, 3, 8}, {4, 8}, {4, 10}, {}, {}, {4, 10}},
     {true,
      true,
      true,
      {1, 2, 3, 5, 8},
      {2, 4, 6, 8},
      {1, 2, 3, 4, 6, 8, 10},
      {1, 3, 5, 8},
      {2, 4, 6, 8},
      {1, 3, 6, 10}},
     {false,
      false,
      true,
      {1, 2, 3, 5, 8},
      {2, 4, 6, 8},
      {1, 2, 3, 4, 6},
      {1, 3, 5, 8},
      {2, 4, 6, 8},
      {1, 3, 6}}},
    {{32, 16, 2},
     {false, false, false, {8}},
     {false, false, false, {5, 8}},
     {false, false, false, {5, 8}}},
    {{64, 8, 1},
     {false, false, false, {1, 3, 8}, {4, 8}},
     {false, false, false, {1, 2, 3, 5, 8}, {2, 4, 6, 8}, {}, {5, 8}, {6, 8}},
     {false, false, false, {1, 2, 3, 5, 8}, {}, {}, {8}}},
    {{64, 8, 2},
     {false, false, false, {8}},
     {false, false, false, {5, 8}, {5}},
     {false, false, false, {5}}},
    // Up to H 768.
    {{48, 16, 1},
     {false, false, false, {1, 3, 8}, {4, 8}},
     {false, false, false, {1, 2, 3, 5, 8}, {2, 4, 6, 8}},
     {}},
    {{48, 16, 2}, {}, {false, false, false, {5}}, {}},
};
inline constexpr size_t kShapes = sizeof(kClusterKernels) / sizeof(kClusterKernels[0]);

// `grows` means that |h| can grow at every step. The fp16x2 kernels check only for h0 and
// for the states to which rows are reset whether they are too large. So no fp16x2 kernels exist for
// cells whose h can grow. The other cells have forward kernels that multiply by fma only up to H
// 128, because fp16x2 is faster.
constexpr ShapeKernels kernels_of(size_t shape, int state_gates, int c_parts, bool grows) {
  const ClusterKernels& all = kClusterKernels[shape];
  ShapeKernels found = state_gates == 1 ? all.one : state_gates < 4 ? all.three : all.four;
  if (grows) found.split_dense = found.split_ragged = {};
  found.fp32_forward = found.fp32_backward && (grows || all.shape.hidden() <= 128);
  if (c_parts > 1 && all.shape.blocks > 1) {
    // These cells, which are formulas, have no kernels for any batch, so they need dense kernels
    // for small H and with resets as well. In the largest shapes, a block has too little shared
    // memory for all parts of c.
    if (all.shape.units == 48) return {};
    if (all.shape.tiles > 1) found.dense_backward = {};
    if (found.half_forward && found.dense_forward.bits == 0) found.dense_forward = {2, 4, 8};
    found.resets_forward = found.dense_forward;
    found.resets_backward = found.dense_backward;
    found.half_forward = found.half_backward = false;
    found.fp32_forward = found.fp32_backward = false;
    found.split_dense = found.split_ragged = {};
  }
  return found;
}

inline ShapeKernels kernels_of(size_t shape, CellKind cell) {
  const CellInfo& info = cell_info(cell);
  return kernels_of(shape, info.state_gates, info.c_parts, h_grows(cell));
}

constexpr std::array<ClusterShape, kShapes> cluster_shapes() {
  std::array<ClusterShape, kShapes> shapes{};
  for (size_t i = 0; i < kShapes; ++i) shapes[i] = kClusterKernels[i].shape;
  return shapes;
}
inline constexpr std::array<ClusterShape, kShapes> kClusterShapes = cluster_shapes();

#endif

}  // namespace treadle

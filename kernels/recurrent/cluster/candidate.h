// The planner's candidate for algorithm "cluster": the shape and the number of rows per cluster
// that minimise the time of a step of the batch.
#pragma once

#include <algorithm>

#include "kernels/recurrent/plan/candidate.h"

namespace treadle::plans {

// The number of clusters that can be resident at once. An H200, which has 132 multiprocessors, has
// room for 7 clusters of 16 blocks, or for 30 of 4 blocks.
inline int64_t clusters_at_once(int blocks, const RecurrenceDevice& device) {
  const int of_132 = blocks == 16 ? 7 : blocks == 8 ? 15 : blocks == 4 ? 30 : 132;
  return std::max<int64_t>(device.multiprocessors * of_132 / 132, 1);
}

// Tells which kernels of one shape can compute a batch.
struct ShapeCandidates {
  ClusterShape shape;
  int any_rows;  // most rows of the kernel for any batch; 0: there is none
  // Rows per tile of each kernel for dense batches. In float32, of each fp16x2 kernel.
  RowCounts dense;

  int most_rows() const { return std::max(any_rows, dense.most() * shape.tiles); }
  // The rows per tile of the dense kernel for `rows` rows, or 0 if there is none.
  int dense_rows(int rows) const {
    return dense.at_least(static_cast<int>(ceil_div(rows, shape.tiles)));
  }
};

inline ShapeCandidates candidates_of(const RecurrenceSizes& sizes, size_t index, bool backward) {
  const ShapeKernels kernels = kernels_of(index, sizes.cell);
  ShapeCandidates found{kClusterShapes[index], 0, {}};
  if (is_half(sizes.dtype)) {
    if (backward ? kernels.half_backward : kernels.half_forward) {
      found.any_rows = found.shape.rows();
    }
    if (is_dense(sizes, backward)) found.dense = kernels.dense(backward, sizes.resets);
  } else if (sizes.dtype == Dtype::kFloat) {
    if (backward ? kernels.fp32_backward : kernels.fp32_forward) {
      found.any_rows = fp32_rows(found.shape, cell_info(sizes.cell).state_gates);
    }
    if (!backward) found.dense = kernels.split(sizes.ragged());
  }
  return found;
}

// The time of a step with `rows` rows per cluster. A dense kernel is used if there is one.
inline double step_time(const RecurrenceSizes& sizes, const ShapeCandidates& kernels, int rows,
                        bool backward) {
  const int gates = cell_info(sizes.cell).state_gates, dense = kernels.dense_rows(rows);
  const bool half = is_half(sizes.dtype);
  if (dense == 0) return cluster_time(kernels.shape, rows, gates, backward, !half);
  return half ? dense_time(kernels.shape, dense, gates, backward)
              : split_time(kernels.shape, dense, gates);
}

// GPUs without clusters run only single-block kernels. In half types, they use these kernels for
// larger H than GPUs with clusters, because a single block is faster than the grid.
inline bool runs_on(const RecurrenceDevice& device, const ClusterShape& shape, Dtype dtype) {
  if (shape.blocks > 1) return device.clusters();
  return !is_half(dtype) || shape.units <= kHalfBlockUnits || !device.clusters();
}

// The largest H that any cluster kernel supports, or 0 if none supports the dtype.
inline int64_t most_hidden_of_clusters(RecurrenceSizes sizes, const RecurrenceDevice& device,
                                       Dtype dtype, bool backward) {
  sizes.dtype = dtype;
  int64_t most = 0;
  for (size_t i = 0; i < kShapes; ++i) {
    if (!runs_on(device, kClusterShapes[i], dtype)) continue;
    if (candidates_of(sizes, i, backward).most_rows() == 0) continue;
    most = std::max(most, kClusterShapes[i].hidden());
  }
  return most;
}

inline KernelId cluster_kernel(const RecurrenceSizes& sizes, const ClusterShape& shape,
                               bool dense) {
  if (shape.blocks == 1) return KernelId::kBlock;
  if (is_half(sizes.dtype)) return dense ? KernelId::kClusterDense : KernelId::kClusterGeneral;
  return dense ? KernelId::kClusterFp16x2 : KernelId::kClusterFma;
}

inline Candidate cluster_candidate(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                                   bool backward) {
  Candidate best;
  best.exists =
      on_chip(sizes, device, most_hidden_of_clusters(sizes, device, sizes.dtype, backward));
  const bool half = is_half(sizes.dtype),
             any_clusters = device.clusters() && in_clusters(sizes, backward);
  // In the backward pass, clusters of several blocks are faster than a single block with many
  // units, unless rows would have to be copied to pad them to 16-byte chunks.
  const bool alone = sizes.hidden <= 32 || sizes.hidden % 8 != 0;
  for (size_t i = 0; i < kShapes && best.exists; ++i) {
    const ClusterShape& shape = kClusterShapes[i];
    if (shape.hidden() < sizes.hidden || !runs_on(device, shape, sizes.dtype)) continue;
    const ShapeCandidates kernels = candidates_of(sizes, i, backward);
    for (int rows = 1; rows <= kernels.most_rows(); ++rows) {
      const int64_t count = ceil_div(sizes.batch, rows) * sizes.directions;
      const int64_t waves =
          std::max<int64_t>(ceil_div(count, clusters_at_once(shape.blocks, device)), 1);
      // In half types, single blocks that would need several waves are skipped in favour of
      // clusters of several blocks. In float32 they are not skipped, although measurements showed
      // that several waves take longer than waves * time.
      if (half && shape.blocks == 1 && any_clusters && (waves > 1 || (backward && !alone))) {
        continue;
      }
      const double time = static_cast<double>(waves) * step_time(sizes, kernels, rows, backward);
      if (time >= best.time) continue;
      best.time = time;
      best.plan.shape = shape;
      best.plan.rows = rows;
      best.plan.tile_rows = kernels.dense_rows(rows);
    }
  }
  const ClusterShape& shape = best.plan.shape;
  best.plan.kernel = cluster_kernel(sizes, shape, best.plan.tile_rows > 0);
  best.plan.reason = shape.blocks == 1 ? "one block keeps the weights on the chip"
                                       : "the blocks of a cluster keep the weights on the chip";
  best.time *= slower(device);
  return best;
}

}  // namespace treadle::plans

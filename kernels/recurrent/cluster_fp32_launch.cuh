// Which float32 kernel a plan names, for any cell: one block alone (block_fp32.cuh) or a cluster of
// 16 (cluster_fp32.cuh).
#pragma once

#include "kernels/recurrent/block_fp32_backward.cuh"
#include "kernels/recurrent/block_fp32_forward.cuh"
#include "kernels/recurrent/cluster_fp32_backward.cuh"
#include "kernels/recurrent/cluster_fp32_forward.cuh"
#include "kernels/recurrent/cluster_launch.cuh"

namespace treadle {

template <class Kind>
cudaError_t run_cluster_fp32(const PersistentForward* args, const ClusterCall& call) {
  using Cell = typename Kind::template Cell<float>;
  return visit_shape(call.plan.shape, [&](auto index) {
    constexpr ClusterShape s = kClusterShapes[decltype(index)::value];
    if constexpr (s.blocks == 1) {
      using Layout = BlockFp32Forward<Cell::kGates, s.units>;
      static_assert(Layout::kSharedBytes <= kMostSharedBytes && s.rows() == Layout::kRows);
      return call(block_fp32_forward<Cell, s.units>, Layout::kThreads, Layout::kSharedBytes, args);
    } else if constexpr (s.has_fp32()) {
      using Layout = ClusterFp32Forward<Cell::kGates, s.units, s.blocks>;
      static_assert(Layout::kSharedBytes <= kMostSharedBytes && s.rows() == kFp32Rows);
      return call(cluster_fp32_forward<Cell, s.units, s.blocks>, kFp32Threads, Layout::kSharedBytes,
                  args);
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

template <class Kind>
cudaError_t run_cluster_fp32(const PersistentBackward* args, const ClusterCall& call) {
  using Cell = typename Kind::template Cell<float>;
  return visit_shape(call.plan.shape, [&](auto index) {
    constexpr ClusterShape s = kClusterShapes[decltype(index)::value];
    if constexpr (s.blocks == 1) {
      using Layout = BlockFp32Backward<Cell::kGates, s.units>;
      static_assert(Layout::kSharedBytes <= kMostSharedBytes && s.rows() == Layout::kRows);
      return call(block_fp32_backward<Cell, s.units>, Layout::kThreads, Layout::kSharedBytes, args);
    } else if constexpr (s.has_fp32()) {
      using Layout = ClusterFp32Backward<Cell::kGates, s.units, s.blocks>;
      static_assert(Layout::kSharedBytes <= kMostSharedBytes && s.rows() == kFp32Rows);
      return call(cluster_fp32_backward<Cell, s.units, s.blocks>, kFp32Threads,
                  Layout::kSharedBytes, args);
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

}  // namespace treadle

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
    if constexpr (!kKernels<Cell, decltype(index)::value>.fp32) {
      return cudaErrorInvalidValue;
    } else if constexpr (s.blocks == 1) {
      using Layout = BlockFp32Forward<Cell, s.units>;
      static_assert(Layout::kSharedBytes <= kMostSharedBytes && s.rows() == Layout::kRows);
      const auto kernel = any_resets(args) ? block_fp32_forward<Cell, s.units, true>
                                           : block_fp32_forward<Cell, s.units, false>;
      return call(kernel, Layout::kThreads, Layout::kSharedBytes, args);
    } else {
      using Layout = ClusterFp32Forward<Cell, s.units, s.blocks>;
      static_assert(Layout::kSharedBytes <= kMostSharedBytes);
      static_assert(Layout::kRows == fp32_rows(s, Cell::kStateGates));
      const auto kernel = any_resets(args) ? cluster_fp32_forward<Cell, s.units, s.blocks, true>
                                           : cluster_fp32_forward<Cell, s.units, s.blocks, false>;
      return call(kernel, kFp32Threads, Layout::kSharedBytes, args);
    }
  });
}

template <class Kind>
cudaError_t run_cluster_fp32(const PersistentBackward* args, const ClusterCall& call) {
  using Cell = typename Kind::template Cell<float>;
  return visit_shape(call.plan.shape, [&](auto index) {
    constexpr ClusterShape s = kClusterShapes[decltype(index)::value];
    if constexpr (!kKernels<Cell, decltype(index)::value>.fp32) {
      return cudaErrorInvalidValue;
    } else if constexpr (s.blocks == 1) {
      using Layout = BlockFp32Backward<Cell, s.units>;
      static_assert(Layout::kSharedBytes <= kMostSharedBytes && s.rows() == Layout::kRows);
      const auto kernel = any_resets(args) ? block_fp32_backward<Cell, s.units, true>
                                           : block_fp32_backward<Cell, s.units, false>;
      return call(kernel, Layout::kThreads, Layout::kSharedBytes, args);
    } else {
      using Layout = ClusterFp32Backward<Cell, s.units, s.blocks>;
      static_assert(Layout::kSharedBytes <= kMostSharedBytes);
      static_assert(Layout::kRows == fp32_rows(s, Cell::kStateGates));
      const auto kernel = any_resets(args) ? cluster_fp32_backward<Cell, s.units, s.blocks, true>
                                           : cluster_fp32_backward<Cell, s.units, s.blocks, false>;
      return call(kernel, kFp32Threads, Layout::kSharedBytes, args);
    }
  });
}

}  // namespace treadle

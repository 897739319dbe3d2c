// Selects and launches the float32 kernel of a plan, for any cell. It is the kernel of a single
// block (block/block.cuh) or of a cluster (cluster/fma.cuh).
#pragma once

#include "kernels/recurrent/block/launch.cuh"
#include "kernels/recurrent/cluster/fma_backward.cuh"
#include "kernels/recurrent/cluster/fma_forward.cuh"

namespace treadle {

template <class Kind>
cudaError_t run_cluster_fp32(const PersistentForward* args, const ClusterCall& call) {
  using Cell = typename Kind::template Cell<float>;
  return visit_shape(call.plan.shape, [&](auto index) {
    constexpr ClusterShape s = kClusterShapes[decltype(index)::value];
    if constexpr (!kKernels<Cell, decltype(index)::value>.fp32_forward) {
      return cudaErrorInvalidValue;
    } else if constexpr (s.blocks == 1) {
      return run_block<Cell, float, s.units>(args, call);
    } else {
      using Layout = ClusterFp32Forward<Cell, s.units, s.blocks>;
      static_assert(Layout::kSharedBytes <= kMostSharedBytes);
      static_assert(Layout::kRows == fp32_rows(s, Cell::kStateGates));
      const auto kernel =
          TREADLE_RESETS_FUNCTION(PersistentKernel<PersistentForward>, call.plan.resets,
                                  cluster_fp32_forward, (Cell), (s.units, s.blocks, resets));
      return call(kernel, kFp32Threads, Layout::kSharedBytes, args);
    }
  });
}

template <class Kind>
cudaError_t run_cluster_fp32(const PersistentBackward* args, const ClusterCall& call) {
  using Cell = typename Kind::template Cell<float>;
  return visit_shape(call.plan.shape, [&](auto index) {
    constexpr ClusterShape s = kClusterShapes[decltype(index)::value];
    if constexpr (!kKernels<Cell, decltype(index)::value>.fp32_backward) {
      return cudaErrorInvalidValue;
    } else if constexpr (s.blocks == 1) {
      return run_block<Cell, float, s.units>(args, call);
    } else {
      using Layout = ClusterFp32Backward<Cell, s.units, s.blocks>;
      static_assert(Layout::kSharedBytes <= kMostSharedBytes);
      static_assert(Layout::kRows == fp32_rows(s, Cell::kStateGates));
      const auto kernel =
          TREADLE_RESETS_FUNCTION(PersistentKernel<PersistentBackward>, call.plan.resets,
                                  cluster_fp32_backward, (Cell), (s.units, s.blocks, resets));
      return call(kernel, kFp32Threads, Layout::kSharedBytes, args);
    }
  });
}

}  // namespace treadle

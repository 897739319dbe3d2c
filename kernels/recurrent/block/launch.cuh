// Launches the kernels of a single block (block/block.cuh) for any cell, in half types.
// cluster/fma_launch.cuh launches them in float32.
#pragma once

#include "kernels/recurrent/block/backward.cuh"
#include "kernels/recurrent/block/forward.cuh"
#include "kernels/recurrent/cluster/call.cuh"

namespace treadle {

template <class T, int units>
inline constexpr CompiledFor kUnitsCode = {80, 1000,
                                           block_has_code(true, is_half_type<T>, units) ? 0 : 90};

template <class Cell, class T, int units>
cudaError_t run_block(const PersistentForward* args, const ClusterCall& call) {
  using Layout = BlockForward<Cell, units>;
  static_assert(Layout::kSharedBytes <= kMostSharedBytes && Layout::kRows == kBlockRows);
  const auto kernel = TREADLE_RESETS_FUNCTION(PersistentKernel<PersistentForward>, call.plan.resets,
                                              block_forward, (Cell, T), (units, resets));
  return call(kernel, Layout::kThreads, Layout::kSharedBytes, args, kUnitsCode<T, units>);
}

template <class Cell, class T, int units>
cudaError_t run_block(const PersistentBackward* args, const ClusterCall& call) {
  using Layout = BlockBackward<Cell, units>;
  static_assert(Layout::kSharedBytes <= kMostSharedBytes && Layout::kRows == kBlockRows);
  const auto kernel =
      TREADLE_RESETS_FUNCTION(PersistentKernel<PersistentBackward>, call.plan.resets,
                              block_backward, (Cell, T), (units, resets));
  return call(kernel, Layout::kThreads, Layout::kSharedBytes, args, kUnitsCode<T, units>);
}

template <class Cell, class Args>
cudaError_t visit_half_block(Dtype dtype, const Args* args, const ClusterCall& call) {
  return visit_shape(call.plan.shape, [&](auto index) {
    constexpr ClusterShape s = kClusterShapes[decltype(index)::value];
    if constexpr (s.blocks > 1 || !kKernels<Cell, decltype(index)::value>.half_forward) {
      return cudaErrorInvalidValue;
    } else {
      return dtype == Dtype::kHalf ? run_block<Cell, Half, s.units>(args, call)
                                   : run_block<Cell, BFloat16, s.units>(args, call);
    }
  });
}

template <class Kind>
cudaError_t run_half_block(Dtype dtype, const PersistentForward* args, const ClusterCall& call) {
  return visit_half_block<typename Kind::template HalfCell<float>>(dtype, args, call);
}

template <class Kind>
cudaError_t run_half_block(Dtype dtype, const PersistentBackward* args, const ClusterCall& call) {
  return visit_half_block<typename Kind::template Cell<float>>(dtype, args, call);
}

}  // namespace treadle

// Which cluster kernel of float32 on tensor cores a plan names, for any cell, and its launch.
// Defines what cluster_launch.cuh declares of them.
#pragma once

#include "kernels/recurrent/cluster_launch.cuh"
#include "kernels/recurrent/cluster_split_forward.cuh"

namespace treadle {

// Calls f(Constant<size_t, i>) for an index `count` of those of `kernels`.
template <unsigned kernels, size_t i = 0, class F>
bool visit_count(size_t count, const F& f) {
  if constexpr (i == kSplitCounts) {
    return false;
  } else {
    if constexpr ((kernels >> i & 1) != 0) {
      if (count == i) return f(Constant<size_t, i>{}), true;
    }
    return visit_count<kernels, i + 1>(count, f);
  }
}

template <class Kind>
bool run_cluster_split(const PersistentForward& args, const ClusterCall& call, cudaError_t* error) {
  using Cell = typename Kind::template Cell<float>;
  if (args.sizes.starts != nullptr || args.resets.marks != nullptr) return false;
  bool found = false;
  visit_shape(call.plan.shape, [&](auto shape) {
    constexpr ClusterShape s = kClusterShapes[decltype(shape)::value];
    constexpr unsigned kernels =
        kSplitKernels<Cell::kGates, Cell::kStateGates>[decltype(shape)::value];
    found = visit_count<kernels>(split_count(kernels, call.plan.rows), [&](auto count) {
      constexpr int rows = kSplitRows[decltype(count)::value];
      using Layout = SplitForward<Cell::kGates, Cell::kStateGates, s.units, s.blocks, rows>;
      *error = call(cluster_split_forward<Cell, s.units, s.blocks, rows>, Layout::kThreads,
                    Layout::kSharedBytes, &args);
    });
    return cudaSuccess;
  });
  return found;
}

}  // namespace treadle

// Which dense cluster kernel a plan names, for any cell, and its launch. Defines what
// cluster_launch.cuh declares of them.
#pragma once

#include "kernels/recurrent/cluster_dense_backward.cuh"
#include "kernels/recurrent/cluster_dense_forward.cuh"
#include "kernels/recurrent/cluster_launch.cuh"

namespace treadle {

inline bool is_dense(const PersistentSizes& sizes, const RecurrenceResets& resets) {
  return sizes.starts == nullptr && resets.marks == nullptr && sizes.hidden % 8 == 0;
}

// Calls f(Constant<size_t, i>) for an index `stride` of those of `kernels`.
template <unsigned kernels, size_t i = 0, class F>
bool visit_stride(size_t stride, const F& f) {
  if constexpr (i == kStrides) {
    return false;
  } else {
    if constexpr ((kernels >> i & 1) != 0) {
      if (stride == i) return f(Constant<size_t, i>{}), true;
    }
    return visit_stride<kernels, i + 1>(stride, f);
  }
}

// Calls f(Constant<size_t, shape>, Constant<size_t, stride>) for what a plan names; false if there
// is no such kernel.
template <class Cell, bool backward, class F>
bool visit_dense(const ClusterPlan& plan, const F& f) {
  bool found = false;
  visit_shape(plan.shape, [&](auto shape) {
    constexpr unsigned kernels =
        kDenseKernels<Cell::kGates, Cell::kStateGates, backward>[decltype(shape)::value];
    const size_t stride = dense_stride(kernels, plan.shape.tiles, plan.rows);
    found = visit_stride<kernels>(stride, [&](auto index) { f(shape, index); });
    return cudaSuccess;
  });
  return found;
}

template <class Cell, class T>
bool run_dense_forward(const PersistentForward& args, const ClusterCall& call, cudaError_t* error) {
  return visit_dense<Cell, false>(call.plan, [&](auto shape, auto stride) {
    constexpr ClusterShape s = kClusterShapes[decltype(shape)::value];
    constexpr int rows = kDenseStrides[decltype(stride)::value];
    using Layout = DenseForward<Cell::kGates, Cell::kStateGates, s.units, s.blocks, s.tiles, rows>;
    *error = call(cluster_dense_forward<Cell, T, s.units, s.blocks, s.tiles, rows>,
                  Layout::kThreads, Layout::kSharedBytes, &args);
  });
}

template <class Cell, class T>
bool run_dense_backward(const PersistentBackward& args, const ClusterCall& call,
                        cudaError_t* error) {
  return visit_dense<Cell, true>(call.plan, [&](auto shape, auto stride) {
    constexpr ClusterShape s = kClusterShapes[decltype(shape)::value];
    constexpr int rows = kDenseStrides[decltype(stride)::value];
    using Layout = DenseBackward<Cell::kGates, Cell::kStateGates, s.units, s.blocks, s.tiles, rows>;
    *error = call(cluster_dense_backward<Cell, T, s.units, s.blocks, s.tiles, rows>,
                  Layout::kThreads, Layout::kSharedBytes, &args);
  });
}

template <class Kind>
bool run_cluster_dense(const PersistentForward& args, const ClusterCall& call, cudaError_t* error) {
  using Cell = typename Kind::template HalfCell<float>;
  if (!is_dense(args.sizes, args.resets) || args.output_row % 4 != 0) return false;
  return args.sizes.dtype == Dtype::kHalf ? run_dense_forward<Cell, Half>(args, call, error)
                                          : run_dense_forward<Cell, BFloat16>(args, call, error);
}

template <class Kind>
bool run_cluster_dense(const PersistentBackward& args, const ClusterCall& call,
                       cudaError_t* error) {
  using Cell = typename Kind::template Cell<float>;
  if (!is_dense(args.sizes, args.resets)) return false;
  return args.sizes.dtype == Dtype::kHalf ? run_dense_backward<Cell, Half>(args, call, error)
                                          : run_dense_backward<Cell, BFloat16>(args, call, error);
}

}  // namespace treadle

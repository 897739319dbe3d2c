// Which cluster kernel a plan names, for any cell, and its launch. Of the half-type shapes those
// are compiled that fit (shapes.h). Defines what cell_launchers.h declares of cluster.
#pragma once

#include <utility>

#include "kernels/recurrent/cell_launchers.h"
#include "kernels/recurrent/cluster_backward.cuh"
#include "kernels/recurrent/cluster_forward.cuh"

namespace treadle {

constexpr bool operator==(const ClusterShape& a, const ClusterShape& b) {
  return a.units == b.units && a.blocks == b.blocks && a.tiles == b.tiles;
}

template <class Cell, size_t i>
inline constexpr ShapeKernels kKernels = kShapeKernels<Cell::kGates, Cell::kStateGates>[i];

// Calls f(Constant<size_t, i>) for the index i of `shape` in kClusterShapes.
template <size_t i = 0, class F>
cudaError_t visit_shape(const ClusterShape& shape, const F& f) {
  if constexpr (i == kShapes) {
    return cudaErrorInvalidValue;
  } else {
    return kClusterShapes[i] == shape ? f(Constant<size_t, i>{}) : visit_shape<i + 1>(shape, f);
  }
}

// Opts in to more than 48 KB of shared memory and to clusters of more than 8 blocks.
template <class... P>
cudaError_t allow_clusters(void (*kernel)(P...), size_t shared_bytes, int blocks) {
  const auto function = reinterpret_cast<const void*>(kernel);
  const cudaError_t error = cudaFuncSetAttribute(
      function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (error != cudaSuccess || blocks <= 8) return error;
  return cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
}

// How many blocks of a kernel without clusters are resident at once.
template <class... P>
cudaError_t blocks_at_once(void (*kernel)(P...), const LaunchShape& shape, int* count) {
  int device = 0, processors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      count, kernel, static_cast<int>(shape.block), shape.shared_bytes);
  *count *= processors;
  return error;
}

// Runs a kernel or, with `at_once`, asks how many of its clusters are resident at once. GPUs before
// sm_90 know no clusters, not even one of one block.
struct ClusterCall {
  const ClusterPlan& plan;
  cudaStream_t stream;
  int* at_once;  // none: run

  template <class Args>
  cudaError_t operator()(void (*kernel)(Args, int), int threads, size_t shared_bytes,
                         const Args* args, const CompiledFor& compiled = {90}) const {
    const int cluster = plan.shape.blocks;
    LaunchShape shape = {
        static_cast<unsigned>(cluster), 1, 1, static_cast<unsigned>(threads), shared_bytes, 8, 1};
    cudaError_t error = allow_clusters(kernel, shared_bytes, cluster);
    if (at_once != nullptr && too_large(error)) return cudaSuccess;
    if (error != cudaSuccess) return error;
    if (at_once != nullptr) {
      bool any = false;
      error = has_code(kernel, compiled, &any);
      if (error != cudaSuccess || !any) return error;
      if (cluster == 1) return blocks_at_once(kernel, shape, at_once);
      LaunchAttributes attributes = cluster_launch(cluster);
      const cudaLaunchConfig_t config = launch_config(shape, attributes);
      return cudaOccupancyMaxActiveClusters(at_once, kernel, &config);
    }
    const PersistentSizes& sizes = args->sizes;
    shape.grid_x *=
        static_cast<unsigned>(ceil_div(sizes.row_count, int64_t{plan.rows}) * sizes.directions);
    shape.elements_per_thread = static_cast<int>(sizes.steps);
    const LaunchAttributes attributes =
        cluster == 1 ? LaunchAttributes() : LaunchAttributes(cluster_launch(cluster));
    return launch_with(kernel, shape, stream, attributes, *args, plan.rows);
  }
};

template <class Cell, class T>
cudaError_t run_cluster_forward(const PersistentForward* args, const ClusterCall& call) {
  return visit_shape(call.plan.shape, [&](auto index) {
    constexpr ClusterShape s = kClusterShapes[decltype(index)::value];
    if constexpr (s.blocks == 1 || !kKernels<Cell, decltype(index)::value>.half_forward) {
      return cudaErrorInvalidValue;
    } else {
      using Layout = ClusterForwardOf<Cell, s.units, s.blocks, s.tiles>;
      const bool resets = any_resets(args);
      const auto kernel = resets ? cluster_forward<Cell, T, s.units, s.blocks, s.tiles, true>
                                 : cluster_forward<Cell, T, s.units, s.blocks, s.tiles, false>;
      return call(kernel, Layout::kThreads, resets ? Layout::kResetsBytes : Layout::kSharedBytes,
                  args);
    }
  });
}

template <class Cell, class T>
cudaError_t run_cluster_backward(const PersistentBackward* args, const ClusterCall& call) {
  return visit_shape(call.plan.shape, [&](auto index) {
    constexpr ClusterShape s = kClusterShapes[decltype(index)::value];
    if constexpr (s.blocks == 1 || !kKernels<Cell, decltype(index)::value>.half_backward) {
      return cudaErrorInvalidValue;
    } else {
      using Layout = ClusterBackwardOf<Cell, s.units, s.blocks>;
      const bool resets = any_resets(args);
      const auto kernel = resets ? cluster_backward<Cell, T, s.units, s.blocks, true>
                                 : cluster_backward<Cell, T, s.units, s.blocks, false>;
      return call(kernel, Layout::kThreads, resets ? Layout::kResetsBytes : Layout::kSharedBytes,
                  args);
    }
  });
}

// The same in float32: cluster_fp32_launch.cuh, in a translation unit of its own.
template <class Kind>
cudaError_t run_cluster_fp32(const PersistentForward* args, const ClusterCall& call);
template <class Kind>
cudaError_t run_cluster_fp32(const PersistentBackward* args, const ClusterCall& call);

// Shapes of one block in half types: block_launch.cuh, likewise.
template <class Kind>
cudaError_t run_half_block(Dtype dtype, const PersistentForward* args, const ClusterCall& call);
template <class Kind>
cudaError_t run_half_block(Dtype dtype, const PersistentBackward* args, const ClusterCall& call);

// Launches the kernel of float32 that multiplies on tensor cores, if there is one for these
// arguments; false: none. cluster_split_launch.cuh, in a translation unit of its own.
template <class Kind>
bool run_cluster_split(const PersistentForward& args, const ClusterCall& call, cudaError_t* error);

// Launches a dense kernel if there is one for these arguments; false: none.
// cluster_dense_launch.cuh, in translation units of their own.
template <class Kind>
bool run_cluster_dense(const PersistentForward& args, const ClusterCall& call, cudaError_t* error);
template <class Kind>
bool run_cluster_dense(const PersistentBackward& args, const ClusterCall& call, cudaError_t* error);

// The plan for the general kernel when no dense kernel takes these arguments. Where only dense
// kernels have a shape of two tiles, it has one tile, and half of the rows.
template <class Cell>
ClusterPlan without_dense(ClusterPlan plan, bool backward) {
  for (size_t i = 0; i < kShapes; ++i) {
    const ShapeKernels& kernels = kShapeKernels<Cell::kGates, Cell::kStateGates>[i];
    const bool any = backward ? kernels.half_backward : kernels.half_forward;
    if (kClusterShapes[i] == plan.shape && !any && plan.shape.tiles == 2) {
      plan.shape.tiles = 1;
      plan.rows = (plan.rows + 1) / 2;
      break;
    }
  }
  return plan;
}

template <class Kind>
cudaError_t run_cluster(Dtype dtype, const PersistentForward* args, const ClusterCall& call) {
  using Cell = typename Kind::template HalfCell<float>;
  cudaError_t error;
  if (dtype == Dtype::kFloat) {
    const bool split = args != nullptr && run_cluster_split<Kind>(*args, call, &error);
    return split ? error : run_cluster_fp32<Kind>(args, call);
  }
  if (call.plan.shape.blocks == 1) return run_half_block<Kind>(dtype, args, call);
  if (args != nullptr && run_cluster_dense<Kind>(*args, call, &error)) return error;
  const ClusterPlan plan = without_dense<Cell>(call.plan, false);
  const ClusterCall other = {plan, call.stream, call.at_once};
  return dtype == Dtype::kHalf ? run_cluster_forward<Cell, Half>(args, other)
                               : run_cluster_forward<Cell, BFloat16>(args, other);
}

template <class Kind>
cudaError_t run_cluster(Dtype dtype, const PersistentBackward* args, const ClusterCall& call) {
  using Cell = typename Kind::template Cell<float>;
  if (dtype == Dtype::kFloat) return run_cluster_fp32<Kind>(args, call);
  if (call.plan.shape.blocks == 1) return run_half_block<Kind>(dtype, args, call);
  cudaError_t error;
  if (args != nullptr && run_cluster_dense<Kind>(*args, call, &error)) return error;
  const ClusterPlan plan = without_dense<Cell>(call.plan, true);
  const ClusterCall other = {plan, call.stream, call.at_once};
  return dtype == Dtype::kHalf ? run_cluster_backward<Cell, Half>(args, other)
                               : run_cluster_backward<Cell, BFloat16>(args, other);
}

template <class Kind>
cudaError_t launch_cluster_forward(const PersistentForward& args, const ClusterPlan& plan,
                                   cudaStream_t stream) {
  return run_cluster<Kind>(args.sizes.dtype, &args, {plan, stream, nullptr});
}

template <class Kind>
cudaError_t launch_cluster_backward(const PersistentBackward& args, const ClusterPlan& plan,
                                    cudaStream_t stream) {
  return run_cluster<Kind>(args.sizes.dtype, &args, {plan, stream, nullptr});
}

// Asks about the kernel that takes any arguments. The answer holds for a dense one, too: each is
// compiled only where its block fits a multiprocessor of sm_90, and their clusters have as many
// blocks.
template <class Kind>
cudaError_t forward_clusters_at_once(Dtype dtype, const ClusterPlan& plan, int* count) {
  *count = 0;
  const PersistentForward* const none = nullptr;
  return run_cluster<Kind>(dtype, none, {plan, nullptr, count});
}

template <class Kind>
cudaError_t backward_clusters_at_once(Dtype dtype, const ClusterPlan& plan, int* count) {
  *count = 0;
  const PersistentBackward* const none = nullptr;
  return run_cluster<Kind>(dtype, none, {plan, nullptr, count});
}

}  // namespace treadle

// Launches cluster kernels, and declares the functions that select the kernel for a cell. Each of
// these functions is defined next to its kernels, and has its own translation unit.
#pragma once

#include "kernels/math/h_bound.h"
#include "kernels/recurrent/engine/resets.cuh"
#ifndef __CUDACC_RTC__
#include <utility>

#include "kernels/recurrent/formula/function.h"
#include "kernels/recurrent/plan/plan.h"

namespace treadle {

template <class Cell>
constexpr ShapeKernels kernels_of(size_t shape) {
  return kernels_of(shape, Cell::kStateGates, Cell::kCParts, Cell::kHBound == math::HBound::kNone);
}
template <class Cell, size_t shape>
inline constexpr ShapeKernels kKernels = kernels_of<Cell>(shape);

// Calls f(Constant<size_t, i>) for the index i of `shape` in kClusterShapes. This and visit_rows()
// are folds, because recursive templates would have an instance for each index and each caller,
// which are thousands.
template <class F, size_t... i>
cudaError_t visit_shape(const ClusterShape& shape, const F& f, std::index_sequence<i...>) {
  cudaError_t error = cudaErrorInvalidValue;
  static_cast<void>(
      ((kClusterShapes[i] == shape && (error = f(Constant<size_t, i>{}), true)) || ...));
  return error;
}

template <class F>
cudaError_t visit_shape(const ClusterShape& shape, const F& f) {
  return visit_shape(shape, f, std::make_index_sequence<kShapes>{});
}

// Calls f(Constant<int, rows>{}) if RowCounts{bits} has the count `rows`.
template <unsigned bits, class F, size_t... k>
cudaError_t visit_rows(int rows, const F& f, std::index_sequence<k...>) {
  cudaError_t error = cudaErrorInvalidValue;
  static_cast<void>(((RowCounts(bits).get(k) == rows &&
                      (error = f(Constant<int, RowCounts(bits).get(k)>{}), true)) ||
                     ...));
  return error;
}

template <unsigned bits, class F>
cudaError_t visit_rows(int rows, const F& f) {
  return visit_rows<bits>(rows, f, std::make_index_sequence<RowCounts(bits).size()>{});
}

// The GPUs for which the kernels of clusters and of single blocks have code. Which units a single
// block supports depends on the GPU, too (block/launch.cuh).
inline constexpr CompiledFor kClusterCode = {90, 109}, kBlockCode = {80};

// Opts in to more than 48 KB of shared memory and to clusters of more than 8 blocks.
template <class... P>
cudaError_t allow_clusters(void (*kernel)(P...), size_t shared_bytes, int blocks) {
  const auto function = reinterpret_cast<const void*>(kernel);
  const cudaError_t error = cudaFuncSetAttribute(
      function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (error != cudaSuccess || blocks <= 8) return error;
  return cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
}

// Runs a kernel or, if `at_once` is not null, computes how many of its clusters can be resident at
// once. GPUs before sm_90 do not support clusters, not even of one block.
struct ClusterCall {
  const RecurrencePlan& plan;
  cudaStream_t stream;
  int* at_once;  // null: run

  // This is not inlined, because it has hundreds of callers, which would all be larger and take
  // longer to compile.
  template <class Args>
  __noinline__ cudaError_t operator()(void (*kernel)(Args, int), int threads, size_t shared_bytes,
                                      const Args* args,
                                      const CompiledFor& compiled = kClusterCode) const {
    const int cluster = plan.shape.blocks;
    LaunchShape shape = {
        static_cast<unsigned>(cluster), 1, 1, static_cast<unsigned>(threads), shared_bytes, 8, 1};
    cudaError_t error = allow_clusters(kernel, shared_bytes, cluster);
    if (at_once != nullptr && cannot_run(error)) return cudaSuccess;
    if (error != cudaSuccess) return error;
    if (at_once != nullptr) {
      bool any = false;
      error = has_code(kernel, compiled, &any);
      if (error != cudaSuccess || !any) return error;
      if (cluster == 1) return blocks_at_once(kernel, threads, shared_bytes, at_once);
      LaunchAttributes attributes = cluster_launch(cluster);
      const cudaLaunchConfig_t config = launch_config(shape, attributes);
      return cudaOccupancyMaxActiveClusters(at_once, kernel, &config);
    }
    const PersistentSizes& sizes = args->sizes;
    shape.grid_x *=
        static_cast<unsigned>(ceil_div(sizes.row_count, int64_t{plan.rows}) * sizes.directions);
    shape.elements_per_thread = static_cast<int>(sizes.steps);
    const LaunchAttributes attributes =
        cluster == 1 ? LaunchAttributes(overlapping_launch())
                     : LaunchAttributes(cluster_launch(cluster), overlapping_launch());
    return launch_with(kernel, shape, stream, attributes, *args, plan.rows);
  }
};

// For half types and any batch (cluster/forward.cuh, cluster/backward.cuh).
template <class Kind>
cudaError_t run_cluster_any(Dtype dtype, const PersistentForward* args, const ClusterCall& call);
template <class Kind>
cudaError_t run_cluster_any(Dtype dtype, const PersistentBackward* args, const ClusterCall& call);

// For half types and dense batches (cluster/dense_launch.cuh).
template <class Kind>
cudaError_t run_cluster_dense(Dtype dtype, const PersistentForward* args, const ClusterCall& call);
template <class Kind>
cudaError_t run_cluster_dense(Dtype dtype, const PersistentBackward* args, const ClusterCall& call);

// For half types and shapes of one block (block/launch.cuh).
template <class Kind>
cudaError_t run_half_block(Dtype dtype, const PersistentForward* args, const ClusterCall& call);
template <class Kind>
cudaError_t run_half_block(Dtype dtype, const PersistentBackward* args, const ClusterCall& call);

// For float32 and any batch, including shapes of one block (cluster/fma_launch.cuh).
template <class Kind>
cudaError_t run_cluster_fp32(const PersistentForward* args, const ClusterCall& call);
template <class Kind>
cudaError_t run_cluster_fp32(const PersistentBackward* args, const ClusterCall& call);

// For float32 and dense batches (cluster/fp16x2_forward.cuh).
template <class Kind>
cudaError_t run_cluster_split(const PersistentForward* args, const ClusterCall& call);

}  // namespace treadle
#endif

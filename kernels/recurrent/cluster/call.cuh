// Shared by the launchers of all cluster kernels: finds the kernel that a plan names, and calls it.
#pragma once

#include "kernels/recurrent/engine/resets.cuh"

namespace treadle {

template <class Cell, size_t i>
inline constexpr ShapeKernels kKernels = kernels_of(i, Cell::kStateGates);

// Calls f(Constant<size_t, i>) for the index i of `shape` in kClusterShapes.
template <size_t i = 0, class F>
cudaError_t visit_shape(const ClusterShape& shape, const F& f) {
  if constexpr (i == kShapes) {
    return cudaErrorInvalidValue;
  } else {
    return kClusterShapes[i] == shape ? f(Constant<size_t, i>{}) : visit_shape<i + 1>(shape, f);
  }
}

// Calls f(Constant<int, n>) for the least n of RowCounts{bits} that is `rows` or more.
template <unsigned bits, int n = 1, class F>
cudaError_t visit_rows(int rows, const F& f) {
  if constexpr (n > RowCounts::kMost) {
    return cudaErrorInvalidValue;
  } else {
    if constexpr (RowCounts(bits).has(n)) {
      if (n >= rows) return f(Constant<int, n>{});
    }
    return visit_rows<bits, n + 1>(rows, f);
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

// The number of resident blocks of a kernel without clusters.
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

// Runs a kernel or, with `at_once`, asks how many of its clusters can be resident. GPUs before
// sm_90 support no clusters, not even of one block.
struct ClusterCall {
  const ClusterPlan& plan;
  cudaStream_t stream;
  int* at_once;  // null: run

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

}  // namespace treadle

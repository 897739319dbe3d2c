// The kernels of the regime "grid", for any cell.
#pragma once

#include "kernels/grid_backward.cuh"
#include "kernels/grid_forward.cuh"

namespace treadle {

inline int grid_groups(const PersistentSizes& sizes, int rows) {
  return static_cast<int>(ceil_div(sizes.row_count, int64_t{rows})) * sizes.directions;
}

inline size_t grid_exchange_bytes(const PersistentSizes& sizes, int rows, int tile_bytes) {
  return static_cast<size_t>(sizes.steps) * grid_groups(sizes, rows) * (rows / 8) * tile_bytes;
}

// A kernel that is to run, or to be asked whether all its blocks are resident at once.
struct GridCall {
  const PersistentSizes& sizes;
  int rows;
  cudaStream_t stream;
  bool* fits;  // none: run

  // The limit of shared memory is the kernel's, not the call's, and another thread may be about to
  // launch it with more rows: so it is always the same.
  template <class Layout, class Args>
  cudaError_t of(void (*kernel)(Args, int), const Args* args) const {
    const int shared_bytes = Layout::shared_bytes(rows), most = Layout::shared_bytes(kGridRows);
    const auto function = reinterpret_cast<const void*>(kernel);
    const int blocks = grid_groups(sizes, rows) * kGridBlocks;
    cudaError_t error =
        cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
    if (fits != nullptr) *fits = false;
    if (fits != nullptr && too_large(error)) return cudaSuccess;
    if (error != cudaSuccess) return error;
    if (fits != nullptr) {
      bool compiled = false;
      error = has_code_for_90(kernel, &compiled);
      if (error != cudaSuccess || !compiled) return error;
      int device = 0, processors = 0, each = 0, cooperative = 0;
      error = cudaGetDevice(&device);
      if (error != cudaSuccess) return error;
      error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
      if (error != cudaSuccess) return error;
      error = cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device);
      if (error != cudaSuccess) return error;
      error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, kGridThreads,
                                                            static_cast<size_t>(shared_bytes));
      *fits = cooperative != 0 && int64_t{each} * processors >= blocks;
      return error;
    }
    const LaunchShape shape = {
        static_cast<unsigned>(blocks), 1, 1, kGridThreads, static_cast<size_t>(shared_bytes), 8,
        static_cast<int>(sizes.steps)};
    return launch_with(kernel, shape, stream, cooperative_launch(), *args, rows);
  }
};

template <template <class> class CellOf, class T>
cudaError_t run_grid_forward(const PersistentForward* args, const GridCall& call) {
  return call.of<GridForward<CellOf<float>::kGates>>(grid_forward<CellOf, T>, args);
}

template <template <class> class CellOf, class T>
cudaError_t run_grid_backward(const PersistentBackward* args, const GridCall& call) {
  return call.of<GridBackward<CellOf<float>::kGates>>(grid_backward<CellOf, T>, args);
}

}  // namespace treadle

// The launch of grid kernels, for any cell. Defines what cell_launchers.h declares of grid.
#pragma once

#include "kernels/recurrent/cell_launchers.h"
#include "kernels/recurrent/grid_backward.cuh"
#include "kernels/recurrent/grid_forward.cuh"

namespace treadle {

// Runs a kernel or, with `fits`, asks whether all its blocks are resident at once.
struct GridCall {
  const PersistentSizes& sizes;
  int rows;
  cudaStream_t stream;
  bool* fits;  // none: run

  // The shared-memory limit is an attribute of the kernel, not of the call, and another thread may
  // be about to launch it with more rows: always set the largest.
  template <class Layout, class Args>
  cudaError_t of(void (*kernel)(Args, int), const Args* args) const {
    const int shared_bytes = Layout::shared_bytes(rows),
              most = Layout::shared_bytes(most_grid_rows<Layout>());
    if (shared_bytes > most) return cudaErrorInvalidValue;
    const auto function = reinterpret_cast<const void*>(kernel);
    const int blocks = grid_groups(sizes, rows) * Layout::kBlocks;
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
      error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, Layout::kThreads,
                                                            static_cast<size_t>(shared_bytes));
      *fits = cooperative != 0 && int64_t{each} * processors >= blocks;
      return error;
    }
    const LaunchShape shape = {
        static_cast<unsigned>(blocks), 1, 1, Layout::kThreads, static_cast<size_t>(shared_bytes), 8,
        static_cast<int>(sizes.steps)};
    return launch_with(kernel, shape, stream, cooperative_launch(), *args, rows);
  }
};

// Calls with a constant: the width of the layouts that take a layer of H up to kGridHidden.
template <class With>
cudaError_t with_grid_width(int64_t hidden, const With& with) {
  return grid_width(hidden) == 0 ? with(Constant<int, kGridNarrowHidden>{})
                                 : with(Constant<int, kGridHidden>{});
}

template <class Cell, class T, int hidden, int late>
cudaError_t run_grid_of(const PersistentForward* args, const GridCall& call) {
  return call.of<GridLayout<Cell, hidden>>(any_resets(args)
                                               ? grid_forward<Cell, T, hidden, true, late>
                                               : grid_forward<Cell, T, hidden, false, late>,
                                           args);
}

// H beyond kGridHidden: grid_wide_launch.cuh, in translation units of their own.
template <class Kind>
cudaError_t run_grid_wide(const PersistentForward* args, const GridCall& call);

// Float32: grid_split_launch.cuh, likewise.
template <class Kind>
cudaError_t run_grid_split(const PersistentForward* args, const GridCall& call);
template <class Kind>
cudaError_t run_grid_split(const PersistentBackward* args, const GridCall& call);

template <class Kind>
cudaError_t run_grid(const PersistentForward* args, const GridCall& call) {
  if (call.sizes.dtype == Dtype::kFloat) return run_grid_split<Kind>(args, call);
  if (call.sizes.hidden > kGridHidden) return run_grid_wide<Kind>(args, call);
  using Cell = typename Kind::template HalfCell<float>;
  const auto run = [&](auto type) {
    using T = typename decltype(type)::type;
    return with_grid_width(call.sizes.hidden, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      // Up to h512, clusters take a batch of a single tile.
      constexpr int kLatest = kWidth == kGridNarrowHidden ? 0 : 2;
      return call.rows == 8    ? run_grid_of<Cell, T, kWidth, kLatest>(args, call)
             : call.rows == 16 ? run_grid_of<Cell, T, kWidth, 1>(args, call)
                               : run_grid_of<Cell, T, kWidth, 0>(args, call);
    });
  };
  return call.sizes.dtype == Dtype::kHalf ? run(Type<Half>{}) : run(Type<BFloat16>{});
}

template <class Cell, class T, int hidden>
cudaError_t run_grid_of(const PersistentBackward* args, const GridCall& call) {
  using Layout = GridBackward<Cell::kGates, Cell::kStateGates, hidden>;
  const auto run = [&](auto late) {
    constexpr int kLate = decltype(late)::value;
    return call.of<Layout>(any_resets(args) ? grid_backward<Cell, T, Layout, true, kLate>
                                            : grid_backward<Cell, T, Layout, false, kLate>,
                           args);
  };
  return call.rows == 8    ? run(Constant<int, 2>{})
         : call.rows == 16 ? run(Constant<int, 1>{})
                           : run(Constant<int, 0>{});
}

template <class Kind>
cudaError_t run_grid(const PersistentBackward* args, const GridCall& call) {
  if (call.sizes.dtype == Dtype::kFloat) return run_grid_split<Kind>(args, call);
  using Cell = typename Kind::template Cell<float>;
  const auto run = [&](auto type) {
    using T = typename decltype(type)::type;
    return with_grid_width(call.sizes.hidden, [&](auto width) {
      return run_grid_of<Cell, T, decltype(width)::value>(args, call);
    });
  };
  return call.sizes.dtype == Dtype::kHalf ? run(Type<Half>{}) : run(Type<BFloat16>{});
}

template <class Kind>
cudaError_t launch_grid_forward(const PersistentForward& args, int rows, cudaStream_t stream) {
  return run_grid<Kind>(&args, {args.sizes, rows, stream, nullptr});
}

template <class Kind>
cudaError_t launch_grid_backward(const PersistentBackward& args, int rows, cudaStream_t stream) {
  return run_grid<Kind>(&args, {args.sizes, rows, stream, nullptr});
}

template <class Kind>
cudaError_t grid_fits(bool backward, const PersistentSizes& sizes, int rows, bool* fits) {
  const GridCall call = {sizes, rows, nullptr, fits};
  return backward ? run_grid<Kind>(static_cast<const PersistentBackward*>(nullptr), call)
                  : run_grid<Kind>(static_cast<const PersistentForward*>(nullptr), call);
}

}  // namespace treadle

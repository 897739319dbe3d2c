// The grid kernels. Their launchers include only this header, so that only the sources that
// instantiate a kernel are compiled again after a change of the functions that it calls. Each of
// these functions is defined in the header that is named next to it.
#pragma once

#include "kernels/common/launch.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/recurrent/grid/shapes.h"
#include "kernels/recurrent/persistent_args.h"

namespace treadle {

// half_forward.cuh, half_backward.cuh
template <class Cell, class T, class Layout, bool any_resets, int late>
__device__ __forceinline__ void run_grid_forward(const PersistentForward& args, int rows_each);
template <class Cell, class T, class Layout, bool any_resets, int late>
__device__ __forceinline__ void run_grid_backward(const PersistentBackward& args, int rows_each);

// fp16x2_forward.cuh, fp16x2_backward.cuh
template <class Cell, class Layout, bool any_resets, bool alone>
__device__ __forceinline__ void run_grid_split_forward(const PersistentForward& args,
                                                       int rows_each);
template <class Cell, class Layout, bool any_resets, bool alone>
__device__ __forceinline__ void run_grid_split_backward(const PersistentBackward& args,
                                                        int rows_each);

// GridMultiplier explains `late`.
template <class Cell, class T, class Layout, bool any_resets, int late>
__global__ void __launch_bounds__(Layout::kThreads, 1)
    grid_forward(const __grid_constant__ PersistentForward args, int rows_each) {
  begin_kernel();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (Layout::kSetmaxnreg == ptx::kSetmaxnreg) {
    run_grid_forward<Cell, T, Layout, any_resets, late>(args, rows_each);
  }
#endif
}

// GridBackwardMultiplier explains `late`.
template <class Cell, class T, class Layout, bool any_resets, int late>
__global__ void __launch_bounds__(Layout::kThreads, 1)
    grid_backward(const __grid_constant__ PersistentBackward args, int rows_each) {
  begin_kernel();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (Layout::kSetmaxnreg == ptx::kSetmaxnreg) {
    run_grid_backward<Cell, T, Layout, any_resets, late>(args, rows_each);
  }
#endif
}

// `alone` means that the group has a single tile.
template <class Cell, class Layout, bool any_resets, bool alone>
__global__ void __launch_bounds__(Layout::kThreads, 1)
    grid_split_forward(const __grid_constant__ PersistentForward args, int rows_each) {
  begin_kernel();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (Layout::kSetmaxnreg == ptx::kSetmaxnreg) {
    run_grid_split_forward<Cell, Layout, any_resets, alone>(args, rows_each);
  }
#endif
}

template <class Cell, class Layout, bool any_resets, bool alone>
__global__ void __launch_bounds__(Layout::kThreads, 1)
    grid_split_backward(const __grid_constant__ PersistentBackward args, int rows_each) {
  begin_kernel();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (Layout::kSetmaxnreg == ptx::kSetmaxnreg) {
    run_grid_split_backward<Cell, Layout, any_resets, alone>(args, rows_each);
  }
#endif
}

}  // namespace treadle

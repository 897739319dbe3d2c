// Launches grid kernels, and declares the functions that select one for a cell. They are defined in
// separate headers (grid/half_launch.cuh, grid/fp16x2_launch.cuh, grid/fp16x2_backward_launch.cuh),
// which are included only by the files that instantiate them.
#pragma once

#include "kernels/recurrent/engine/persistent.cuh"
#include "kernels/recurrent/engine/resets.cuh"
#include "kernels/recurrent/formula/function.h"
#include "kernels/recurrent/plan/plan.h"

namespace treadle {

// Runs a kernel or, if `fits` is not null, computes whether all its blocks can be resident at once.
struct GridCall {
  const PersistentSizes& sizes;
  const RecurrencePlan& plan;
  cudaStream_t stream;
  bool* fits;  // null: run

  template <class Layout, class Args>
  cudaError_t of(void (*kernel)(Args, int), const Args* args) const {
    const int rows = plan.rows;
    DeviceLimits limits{};
    cudaError_t error = current_limits(&limits);
    if (error != cudaSuccess) return error;
    // The shared-memory limit is an attribute of the kernel, not of the call, and another thread
    // may launch the kernel with more rows, so this always sets the largest limit.
    const int shared_bytes = Layout::shared_bytes(rows),
              most = Layout::shared_bytes(grid_shape<Layout>().rows(limits.shared_bytes));
    if (fits != nullptr) *fits = false;
    if (shared_bytes > most) return fits != nullptr ? cudaSuccess : cudaErrorInvalidValue;
    const auto function = reinterpret_cast<const void*>(kernel);
    const int blocks = grid_groups(sizes, rows) * Layout::kBlocks;
    error = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
    if (fits != nullptr && cannot_run(error)) return cudaSuccess;
    if (error != cudaSuccess) return error;
    if (fits != nullptr) {
      constexpr CompiledFor kCode =
          Layout::kSetmaxnreg ? CompiledFor{90, 90} : CompiledFor{80, 1000, 90};
      bool compiled = false;
      error = has_code(kernel, kCode, &compiled);
      if (error != cudaSuccess || !compiled) return error;
      int at_once = 0;
      error = blocks_at_once(kernel, Layout::kThreads, static_cast<size_t>(shared_bytes), &at_once);
      *fits = limits.cooperative != 0 && at_once >= blocks;
      return error;
    }
    const LaunchShape shape = {
        static_cast<unsigned>(blocks), 1, 1, Layout::kThreads, static_cast<size_t>(shared_bytes), 8,
        static_cast<int>(sizes.steps)};
    return launch_with(kernel, shape, stream, cooperative_launch(), *args, rows);
  }
};

// Calls with(Constant<int, width>), where `width` is the largest H that the layouts for this layer
// support. H is at most kGridHidden.
template <bool setmaxnreg, class With>
cudaError_t with_grid_width(int64_t hidden, const With& with) {
  const int width = grid_width(hidden, setmaxnreg);
  if constexpr (!setmaxnreg) {
    if (width == 0) return with(Constant<int, kGrid256>{});
  }
  return width == 1 ? with(Constant<int, kGridNarrowHidden>{}) : with(Constant<int, kGridHidden>{});
}

// For half types. run_grid_half is for H up to kGridHidden, run_grid_h2048 for larger H.
template <class Kind, bool setmaxnreg>
cudaError_t run_grid_half(const PersistentForward* args, const GridCall& call);
template <class Kind, bool setmaxnreg>
cudaError_t run_grid_half(const PersistentBackward* args, const GridCall& call);
template <class Kind, bool setmaxnreg>
cudaError_t run_grid_h2048(const PersistentForward* args, const GridCall& call);

// For float32.
template <class Kind, bool setmaxnreg>
cudaError_t run_grid_split(const PersistentForward* args, const GridCall& call);
template <class Kind, bool setmaxnreg>
cudaError_t run_grid_split(const PersistentBackward* args, const GridCall& call);

}  // namespace treadle

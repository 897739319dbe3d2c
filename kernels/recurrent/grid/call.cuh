// Launches grid kernels, and declares the functions that select one for a cell. They are defined in
// separate headers (grid/half_launch.cuh, grid/fp16x2_launch.cuh, grid/fp16x2_backward_launch.cuh),
// which are included only by the files that instantiate them.
#pragma once

#include "kernels/recurrent/engine/persistent.cuh"
#include "kernels/recurrent/engine/resets.cuh"
#include "kernels/recurrent/formula/function.h"
#include "kernels/recurrent/plan/plan.h"

namespace treadle {

// The GPUs for which the grid kernels have code.
template <bool setmaxnreg>
inline constexpr CompiledFor kGridCode =
    setmaxnreg ? CompiledFor{90, 90} : CompiledFor{80, 1000, 90};

// What a launch of a grid kernel needs.
struct GridNeeds {
  int threads;
  GridShape shape;
  CompiledFor code;

  int shared_bytes(int rows) const { return shape.stages + rows * shape.row_bytes; }
};

// Runs a kernel or, if `fits` is not null, computes whether all its blocks can be resident at once.
struct GridCall {
  const PersistentSizes& sizes;
  const RecurrencePlan& plan;
  cudaStream_t stream;
  bool* fits;  // null: run

  template <class Layout, class Args>
  cudaError_t of(void (*kernel)(Args, int), const Args* args) const {
    static constexpr GridNeeds needs = {Layout::kThreads, grid_shape<Layout>(),
                                        kGridCode<Layout::kSetmaxnreg>};
    return run(kernel, needs, args);
  }

 private:
  // This is not inlined, like ClusterCall::operator().
  template <class Args>
  __noinline__ cudaError_t run(void (*kernel)(Args, int), const GridNeeds& needs,
                               const Args* args) const {
    DeviceLimits limits{};
    cudaError_t error = current_limits(&limits);
    if (error != cudaSuccess) return error;
    const int blocks = grid_groups(sizes, plan.rows) * needs.shape.blocks;
    const int shared_bytes = needs.shared_bytes(plan.rows);
    const int most = needs.shared_bytes(needs.shape.rows(limits.shared_bytes));
    if (fits != nullptr) *fits = false;
    if (shared_bytes > most) return fits != nullptr ? cudaSuccess : cudaErrorInvalidValue;
    // The shared-memory limit is an attribute of the kernel, not of the call, and another thread
    // may launch the kernel with more rows, so this always sets the largest limit.
    error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, most);
    if (fits != nullptr && cannot_run(error)) return cudaSuccess;
    if (error != cudaSuccess) return error;
    if (fits != nullptr) {
      bool compiled = false;
      error = has_code(kernel, needs.code, &compiled);
      if (error != cudaSuccess || !compiled) return error;
      int at_once = 0;
      error = blocks_at_once(kernel, needs.threads, static_cast<size_t>(shared_bytes), &at_once);
      *fits = limits.cooperative != 0 && at_once >= blocks;
      return error;
    }
    const LaunchShape shape = {static_cast<unsigned>(blocks),
                               1,
                               1,
                               static_cast<unsigned>(needs.threads),
                               static_cast<size_t>(shared_bytes),
                               8,
                               static_cast<int>(sizes.steps)};
    return launch_with(kernel, shape, stream, cooperative_launch(), *args, plan.rows);
  }
};

// Calls with(Constant<int, width>), where `width` is the largest H that the layouts for this layer
// support. H is at most kGridHidden.
template <bool setmaxnreg, class With>
cudaError_t with_grid_width(int64_t hidden, const With& with) {
  const int width = grid_width(hidden, setmaxnreg);
  if constexpr (!setmaxnreg) {
    if (width == 0) return with(Constant<int, kGrid128>{});
    if (width == 1) return with(Constant<int, kGrid256>{});
  }
  return width == 2 ? with(Constant<int, kGridNarrowHidden>{}) : with(Constant<int, kGridHidden>{});
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

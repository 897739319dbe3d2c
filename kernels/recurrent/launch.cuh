// Defines run_persistent() of cell_launchers.h: calls the launcher of the kernel that a plan
// selects, for any cell. The build leaves out the sources of instances/ that have no code for any
// of its architectures (CODE in tools/native/cuda.py), so their launchers must not be called here.
#pragma once

#include <type_traits>

#include "kernels/recurrent/cell_launchers.h"
#include "kernels/recurrent/cluster/call.cuh"
#include "kernels/recurrent/grid/call.cuh"

namespace treadle {

// Whether the build has an architecture for which kernels have code. Kernels of formulas are
// compiled at run time, so their launchers always exist.
template <class Kind>
constexpr bool in_build(const CompiledFor& code) {
  bool found = kFromFormula<typename Kind::template Cell<float>>;
#if defined(__CUDA_ARCH_LIST__)
  for (const int architecture : {__CUDA_ARCH_LIST__}) found |= code(architecture / 10);
#endif
  return found;
}

// The result of a launcher that was left out: its kernel cannot run on this device.
inline cudaError_t left_out(const PersistentCall& call) {
  if (call.fits == nullptr) return cudaErrorNoKernelImageForDevice;
  *call.fits = false;
  return cudaSuccess;
}

template <class Kind, class Args>
cudaError_t run_clusters(const Args* args, const PersistentCall& call) {
  constexpr bool kForward = std::is_same_v<Args, PersistentForward>;
  constexpr bool kBuilt = in_build<Kind>(kClusterCode);
  if (!kBuilt && call.plan.kernel != KernelId::kBlock) return left_out(call);
  const Dtype dtype = call.sizes.dtype;
  int at_once = 0;
  const ClusterCall own{call.plan, call.stream, call.fits != nullptr ? &at_once : nullptr};
  cudaError_t error = cudaErrorInvalidValue;
  // Clusters of several blocks have only dense kernels for several parts of c.
  constexpr bool kAnyBatch = kBuilt && Kind::template Cell<float>::kCParts == 1;
  switch (call.plan.kernel) {
    case KernelId::kBlock:
      error = dtype == Dtype::kFloat ? run_cluster_fp32<Kind>(args, own)
                                     : run_half_block<Kind>(dtype, args, own);
      break;
    case KernelId::kClusterGeneral:
      if constexpr (kAnyBatch) error = run_cluster_any<Kind>(dtype, args, own);
      break;
    case KernelId::kClusterDense:
      if constexpr (kBuilt) error = run_cluster_dense<Kind>(dtype, args, own);
      break;
    case KernelId::kClusterFp16x2:
      if constexpr (kAnyBatch && kForward) error = run_cluster_split<Kind>(args, own);
      break;
    case KernelId::kClusterFma:
      error = run_cluster_fp32<Kind>(args, own);
      break;
    default:
      break;
  }
  if (call.fits != nullptr) *call.fits = at_once > 0;
  return error;
}

template <class Kind, bool setmaxnreg, class Args>
cudaError_t run_grid(const Args* args, const PersistentCall& call) {
  constexpr bool kForward = std::is_same_v<Args, PersistentForward>;
  const GridCall own{call.sizes, call.plan, call.stream, call.fits};
  switch (call.plan.kernel) {
    case KernelId::kGridHalf:
      return run_grid_half<Kind, setmaxnreg>(args, own);
    case KernelId::kGridH2048:
      if constexpr (kForward) return run_grid_h2048<Kind, setmaxnreg>(args, own);
      return cudaErrorInvalidValue;
    case KernelId::kGridFp16x2:
      return run_grid_split<Kind, setmaxnreg>(args, own);
    default:
      return cudaErrorInvalidValue;
  }
}

template <class Kind, class Args>
cudaError_t run_named(const Args* args, const PersistentCall& call) {
  if (!call.plan.grid()) {
    if constexpr (in_build<Kind>(kBlockCode)) return run_clusters<Kind>(args, call);
  } else if (call.plan.setmaxnreg) {
    if constexpr (in_build<Kind>(kGridCode<true>)) return run_grid<Kind, true>(args, call);
  } else {
    if constexpr (in_build<Kind>(kGridCode<false>)) return run_grid<Kind, false>(args, call);
  }
  return left_out(call);
}

template <class Kind>
cudaError_t run_persistent(const PersistentForward* args, const PersistentCall& call) {
  return run_named<Kind>(args, call);
}

template <class Kind>
cudaError_t run_persistent(const PersistentBackward* args, const PersistentCall& call) {
  return run_named<Kind>(args, call);
}

}  // namespace treadle

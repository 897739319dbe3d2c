// lltm_layer's regime "cluster" in float32. Engine: kernels/cluster_float.cuh, and of one block
// kernels/block_float.cuh.
#include "kernels/block_float_backward.cuh"
#include "kernels/block_float_forward.cuh"
#include "kernels/cluster_float_backward.cuh"
#include "kernels/cluster_float_forward.cuh"
#include "kernels/cluster_launch.cuh"
#include "kernels/math/lltm_recurrence.h"

namespace treadle {

using math::LltmRecurrence;

static constexpr int kGates = LltmRecurrence<float>::kGates;

cudaError_t run_lltm_cluster_float(const PersistentForward* args, const ClusterCall& call) {
  return visit_shape(call.plan.shape, [&](auto index) {
    constexpr ClusterShape s = kClusterShapes[decltype(index)::value];
    if constexpr (s.blocks == 1) {
      using Is = BlockForward<kGates, s.units>;
      static_assert(Is::kSharedBytes <= kMostSharedBytes && s.rows() == Is::kRows);
      return call(block_float_forward<LltmRecurrence, s.units>, Is::kThreads, Is::kSharedBytes,
                  args);
    } else if constexpr (s.has_float()) {
      using Is = FloatForward<kGates, s.units, s.blocks>;
      static_assert(Is::kSharedBytes <= kMostSharedBytes && s.rows() == kFloatRows);
      return call(cluster_float_forward<LltmRecurrence, s.units, s.blocks>, kFloatThreads,
                  Is::kSharedBytes, args);
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

cudaError_t run_lltm_cluster_float(const PersistentBackward* args, const ClusterCall& call) {
  return visit_shape(call.plan.shape, [&](auto index) {
    constexpr ClusterShape s = kClusterShapes[decltype(index)::value];
    if constexpr (s.blocks == 1) {
      using Is = BlockBackward<kGates, s.units>;
      static_assert(Is::kSharedBytes <= kMostSharedBytes && s.rows() == Is::kRows);
      return call(block_float_backward<LltmRecurrence, s.units>, Is::kThreads, Is::kSharedBytes,
                  args);
    } else if constexpr (s.has_float()) {
      using Is = FloatBackward<kGates, s.units, s.blocks>;
      static_assert(Is::kSharedBytes <= kMostSharedBytes && s.rows() == kFloatRows);
      return call(cluster_float_backward<LltmRecurrence, s.units, s.blocks>, kFloatThreads,
                  Is::kSharedBytes, args);
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

}  // namespace treadle
